"""Metric definitions: one place for the name, the document, the code and (through the code) the gold.

Several metrics have rival definitions under one name (refund rate by amount or by orders): which one holds is said only
in the task's document, so the retriever matters.
"""

from __future__ import annotations

from dataclasses import dataclass

# One-letter variables of the expert's code, one a table.
VARIABLES = {"orders": "o", "marketing": "k", "users": "u"}


@dataclass(frozen=True)
class Metric:
    id: str
    name_en: tuple[str, ...]
    """Name first, then synonyms."""
    name_zh: tuple[str, ...]
    numerator: tuple[str, ...]
    """`table.column` terms; the second and later are subtracted."""
    denominator: str | None = None
    scale: int = 1
    unit: str | None = None

    @property
    def tables(self) -> list[str]:
        terms = [*self.numerator, *([self.denominator] if self.denominator else [])]
        return list(dict.fromkeys(term.split(".")[0] for term in terms))

    @property
    def additive(self) -> bool:
        return self.denominator is None

    def formula(self) -> str:
        """Formula of the document: sums over the rows in question."""
        top = " - ".join(f"sum({term})" for term in self.numerator)
        if self.denominator is None:
            return top
        top = f"({top})" if len(self.numerator) > 1 else top
        return f"{top} / sum({self.denominator})" + (f" * {self.scale}" if self.scale != 1 else "")

    def expression(self) -> str:
        """The same as pandas over the one-letter variables; they hold a frame (a number results) or a groupby (a series)."""

        def term(name: str) -> str:
            table, column = name.split(".")
            return f"{VARIABLES[table]}[{column!r}].sum()"

        top = " - ".join(term(name) for name in self.numerator)
        if self.denominator is None:
            return top
        top = f"({top})" if len(self.numerator) > 1 else top
        return f"{top} / {term(self.denominator)}" + (f" * {self.scale}" if self.scale != 1 else "")

    def document(self, language: str) -> tuple[str, str]:
        """(title, text) in one language."""
        if language == "zh":
            unit = f"，单位 {self.unit}" if self.unit else ""
            return self.name_zh[0], f"{self.name_zh[0]} = {self.formula()}{unit}"
        unit = f", in {self.unit}" if self.unit else ""
        return self.name_en[0], f"{self.name_en[0]} = {self.formula()}{unit}"


METRICS = [
    Metric("gmv", ("GMV", "gross merchandise value"), ("GMV", "成交总额"), ("orders.gmv",)),
    Metric("refund_amount", ("refund amount", "refunds"), ("退款金额", "退款额"), ("orders.refund_amount",)),
    Metric("net_revenue", ("net revenue",), ("净收入", "净营收"), ("orders.gmv", "orders.refund_amount")),
    Metric("refund_rate.amount", ("refund rate",), ("退款率",), ("orders.refund_amount",), "orders.gmv", 100, "%"),
    Metric(
        "refund_rate.orders", ("refund rate",), ("退款率",), ("orders.refund_orders",), "orders.orders_count", 100, "%"
    ),
    Metric("orders", ("number of orders", "order count"), ("订单数", "订单量"), ("orders.orders_count",)),
    Metric(
        "aov.gross", ("average order value", "AOV"), ("客单价", "平均订单金额"), ("orders.gmv",), "orders.orders_count"
    ),
    Metric(
        "aov.net",
        ("average order value", "AOV"),
        ("客单价", "平均订单金额"),
        ("orders.gmv", "orders.refund_amount"),
        "orders.orders_count",
    ),
    Metric("spend", ("marketing spend", "ad spend"), ("投放花费", "营销费用"), ("marketing.spend",)),
    Metric("impressions", ("impressions",), ("曝光量", "展示量"), ("marketing.impressions",)),
    Metric("clicks", ("clicks",), ("点击量", "点击数"), ("marketing.clicks",)),
    Metric(
        "ctr",
        ("click-through rate", "CTR"),
        ("点击率", "CTR"),
        ("marketing.clicks",),
        "marketing.impressions",
        100,
        "%",
    ),
    Metric("cpc", ("cost per click", "CPC"), ("单次点击成本", "CPC"), ("marketing.spend",), "marketing.clicks"),
    Metric(
        "cpm", ("cost per mille", "CPM"), ("千次展示成本", "CPM"), ("marketing.spend",), "marketing.impressions", 1000
    ),
    Metric("roas.gross", ("ROAS", "return on ad spend"), ("ROAS", "广告回报率"), ("orders.gmv",), "marketing.spend"),
    Metric(
        "roas.net",
        ("ROAS", "return on ad spend"),
        ("ROAS", "广告回报率"),
        ("orders.gmv", "orders.refund_amount"),
        "marketing.spend",
    ),
    Metric("new_users", ("new users",), ("新用户数", "新增用户"), ("users.new_users",)),
    Metric("active_users", ("active users",), ("活跃用户数", "活跃用户"), ("users.active_users",)),
    Metric(
        "new_user_share", ("new user share",), ("新用户占比",), ("users.new_users",), "users.active_users", 100, "%"
    ),
    Metric("cac", ("CAC", "customer acquisition cost"), ("获客成本", "CAC"), ("marketing.spend",), "users.new_users"),
    Metric("gmv_per_user", ("GMV per active user",), ("活跃用户人均GMV",), ("orders.gmv",), "users.active_users"),
    Metric(
        "orders_per_user",
        ("orders per active user",),
        ("活跃用户人均订单数",),
        ("orders.orders_count",),
        "users.active_users",
    ),
]
BY_ID = {metric.id: metric for metric in METRICS}


def rivals(metric: Metric) -> set[str]:
    """Ids of definitions that share the name: never shown together, or the question would have two answers."""
    return {other.id for other in METRICS if other.id.split(".")[0] == metric.id.split(".")[0]}
