from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentic.records import Document
from agentic.tools.retriever import Retriever, terms

DOCUMENTS = [
    Document(id="gmv", title="GMV (gross merchandise volume)", text="Sum of order amount before refunds."),
    Document(id="aov", title="avg_order_value", text="Paid amount divided by the number of paid orders."),
    Document(id="repeat", title="复购率", text="周期内下单两次及以上的用户数除以下单用户数。"),
    Document(id="refund", title="退款率", text="退款订单数除以支付订单数。"),
    Document(id="kedan", title="客单价", text="支付金额除以支付用户数。"),
]


def found(query: str, top_k: int = 1) -> list[str]:
    return [document.id for document in Retriever(DOCUMENTS).search(query, top_k)]


def test_english_chinese_and_mixed_queries_find_the_definition() -> None:
    assert found("What is the GMV of March?") == ["gmv"]
    assert found("average order value") == ["aov"]
    assert found("avg_order_value") == ["aov"]
    assert found("avgOrderValue") == ["aov"]
    assert found("ＧＭＶ") == ["gmv"]
    assert found("三月的复购率是多少？") == ["repeat"]
    assert found("请问退款率怎么算") == ["refund"]
    assert found("客单价 definition") == ["kedan"]


def test_the_title_counts_more_than_the_text() -> None:
    documents = [
        Document(id="text", title="a note", text="churn churn rate"),
        Document(id="title", title="churn", text="share of users that leave"),
    ]
    assert [document.id for document in Retriever(documents).search("churn", 2)] == ["title", "text"]


def test_a_rare_word_beats_a_common_one() -> None:
    documents = [Document(id=str(i), title="", text="orders by store") for i in range(5)]
    documents.append(Document(id="rare", title="", text="margin by store"))
    assert Retriever(documents).search("orders margin store")[0].id == "rare"


def test_nothing_to_find_is_an_empty_list() -> None:
    assert Retriever([]).search("gmv") == []
    assert found("") == []
    assert found("？！ ...") == []
    assert found("unrelated") == []
    assert found("gmv", 0) == []
    assert found("gmv", -1) == []
    assert Retriever([Document(id="empty", title="", text="")]).search("gmv") == []


def test_ties_keep_the_order_of_the_documents() -> None:
    twins = [Document(id=str(i), title="same", text="same text") for i in range(4)]
    assert [document.id for document in Retriever(twins).search("same", 3)] == ["0", "1", "2"]


def test_terms() -> None:
    assert terms("客单价") == ["客单", "单价"]
    assert terms("率 of net_sales") == ["率", "of", "net", "sale", "net_sales"]
    assert terms("Orders paidUsers x1") == ["order", "paid", "user", "paidusers", "x1"]


@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=40)), max_size=6),
    st.text(max_size=20),
    st.integers(-1, 9),
)
def test_any_text_is_searchable(texts: list[tuple[str, str]], query: str, top_k: int) -> None:
    documents = [Document(id=str(i), title=title, text=text) for i, (title, text) in enumerate(texts)]
    results = Retriever(documents).search(query, top_k)
    assert len(results) <= max(top_k, 0)
    assert len({document.id for document in results}) == len(results)
    for document in results:
        assert set(terms(query)) & set(terms(f"{document.title}\n{document.text}"))


@given(st.text(alphabet="abc客单价率_ ", min_size=1, max_size=12))
def test_a_document_finds_itself_by_its_title(title: str) -> None:
    documents = [Document(id="other", title="zzz", text="yyy"), Document(id="it", title=title, text="")]
    assert [document.id for document in Retriever(documents).search(title)] == (["it"] if terms(title) else [])
