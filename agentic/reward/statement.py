"""What of an agent's final message is its answer: reasoning, code, repeated questions and typesetting are taken away.

An answer is what a reader could use without running anything, so code and calls state nothing.
"""

from __future__ import annotations

import ast
import re

_REASONING = r"think|thinking|thought|reasoning|scratchpad|analysis"
_CALLS = re.compile(
    r"<(tool_call|code|function_call|interpreter|tool_response)>.*?(?:</\1>|$)", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(r"```[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)(?:```|$)", re.DOTALL)
_TEXT_FENCES = {"", "text", "txt", "json", "csv", "markdown", "md", "plaintext", "output"}
_QUERY = re.compile(r"\s*(?:select\b.+\bfrom\b|with\s+\w+\s+as\s*\()", re.IGNORECASE | re.DOTALL)
_TYPESETTING = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_MATHS = re.compile(r"\$\s*([-+≈~<>=]?\s*[\d.,%^{}()\s×\\]+?|[^$\n]*\\[^$\n]*?)\s*\$(?!\d)")
_COUNTED = re.compile(r"how (?:many|much)|多少|几[个家种条行天次位人]", re.IGNORECASE)


def final_text(answer: str) -> str:
    """The answer proper: the first <answer> block if there is one (what follows it is run-on), reasoning removed."""
    text = re.sub(rf"<({_REASONING})>.*?(?:</\1>|$)", "", answer, flags=re.DOTALL | re.IGNORECASE)
    # Where the prompt opened the reasoning, the message only closes it.
    text = re.split(rf"</(?:{_REASONING})>", text, flags=re.IGNORECASE)[-1]
    if block := re.search(r"<answer>(.*?)(?:</answer>|$)", text, flags=re.DOTALL):
        text = block[1]
    return text


def statement(answer: str, question: str = "") -> str:
    """The words of the answer that can state something; "" where there are none."""
    text = _CALLS.sub("", final_text(answer))
    text = _FENCE.sub(_unfenced, text)
    text = "\n".join(line for line in text.split("\n") if not is_code(line))
    asked = question.strip()
    if len(asked) > 8 and text.strip().casefold().startswith(asked.casefold()):
        text = text.strip()[len(asked) :]
    return typeset(text)


def _unfenced(match: re.Match[str]) -> str:
    return match["body"] if match["language"].lower() in _TEXT_FENCES and not _QUERY.match(match["body"]) else ""


def is_code(line: str) -> bool:
    """A line that is Python with a call or a subscript of a name in it, an import, or an SQL query."""
    line = line.strip().strip("`").strip()
    if _QUERY.match(line):
        return True
    if not line.isascii() or not re.search(r"[(\[]|import", line) or line[0] in "([":
        return False
    try:
        tree = ast.parse(line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.Call) and (isinstance(node.func, ast.Attribute) or _builtin(node.func)):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare | ast.Constant):
            return True
    return False


def _builtin(node: ast.expr) -> bool:
    names = {
        "print",
        "len",
        "sum",
        "max",
        "min",
        "round",
        "int",
        "float",
        "str",
        "sorted",
        "abs",
        "list",
        "set",
        "eval",
    }
    return isinstance(node, ast.Name) and node.id in names


def typeset(text: str) -> str:
    r"""LaTeX and markdown marks removed: \boxed{\text{East}} is East, $12.5\%$ is 12.5%, **42** is 42."""
    before = None
    while before != text:
        before, text = text, _TYPESETTING.sub(r"\1", text)
    text = re.sub(r"\\(?:times|cdot)", "×", text).replace("\\%", "%").replace("\\$", "$")
    text = _MATHS.sub(r"\1", text)
    text = re.sub(r"\\[()\[\],;!]|\{,\}", lambda m: "," if m[0] == "{,}" else "", text)
    return re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\d)", r"\1", text)


def repeated_year(value: float, question: str) -> bool:
    """A year that the question gave where it asks for an amount: no answer, whatever stands beside it."""
    return value.is_integer() and bool(_COUNTED.search(question)) and str(int(value)) in question
