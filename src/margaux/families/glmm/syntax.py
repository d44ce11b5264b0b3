"""A formula's parts: response, fixed effects, random terms, offsets. Nothing here looks at data."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from formulae.expr import Assign, Binary, Call, Grouping, Literal, QuotedName, Unary, Variable
from formulae.parser import ParseError, Parser
from formulae.scanner import ScanError, Scanner
from formulae.token import Token

#: words for the covariance of a term's effects: unstructured, independent, compound symmetric, first-order autoregressive,
#: Matern of smoothness 3/2, exponential, which is that of 1/2, and of 5/2; the first two by their smoothness too
STRUCTURES = ("us", "diag", "cs", "ar1", "mat", "exp", "mat12", "mat32", "mat52")
SAME = {"mat12": "exp", "mat32": "mat"}
#: those whose left side names the places of the effects, in time or in the plane
PLACED = ("ar1", "mat", "exp", "mat52")
BRACKETS = {")": "(", "]": "[", "}": "{"}


class Bar(NamedTuple):
    """A random term `structure(left | group)`; `group` holds the nodes whose interaction groups the rows."""

    left: Any
    group: tuple[Any, ...]
    structure: str
    text: str


class Syntax(NamedTuple):
    """The parts of a formula as syntax trees; `fixed` has the intercept, unless the formula takes it away."""

    formula: str
    response: Any
    fixed: Any
    bars: tuple[Bar, ...]
    offsets: tuple[Any, ...]


def near(name: str, known: Iterable[str]) -> str:
    """A suggestion for a misspelt name, or nothing."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    return f'; did you mean "{by_lower[close[0]]}"?' if close else ""


class _Placed(Scanner):
    """Tokens that know where in the formula they stand."""

    def add_token(self, kind, literal=None):
        super().add_token(kind, literal)
        token: Any = self.tokens[-1]
        token.place = self.start


def fault(formula: str, what: str, place: int | None = None) -> ValueError:
    """The error of a formula that cannot be read, with its place."""
    at = "" if place is None else f' (at "{formula[place:].strip() or "its end"}")'
    return ValueError(f'cannot read the formula "{formula}": {what}{at}')


def _check_marks(formula: str) -> None:
    """Brackets and quotes come in pairs."""
    open_, quote = [], None
    for place, mark in enumerate(formula):
        if quote is not None:
            quote = None if mark == formula[quote] else quote
        elif mark in "`'\"":
            quote = place
        elif mark in BRACKETS.values():
            open_.append(place)
        elif mark in BRACKETS:
            if not open_ or formula[open_[-1]] != BRACKETS[mark]:
                raise fault(formula, f'"{mark}" closes nothing', place)
            open_.pop()
    if quote is not None:
        raise fault(formula, f"the quote {formula[quote]} is not closed", quote)
    if open_:
        raise fault(formula, f'the bracket "{formula[open_[-1]]}" is not closed', open_[-1])


def _tokens(formula: str) -> list[Any]:
    scanner = _Placed(formula)
    try:
        scanner.scan(add_intercept=False)
    except ScanError as error:
        if formula.count("~") > 1:
            raise fault(formula, 'it has more than one "~"', formula.rindex("~")) from error
        mark = formula[scanner.start]
        mend = "write names that hold it in backquotes, as `a_b c`" if mark in "_$@#" else str(error).rstrip(".")
        raise fault(formula, f'"{mark}" cannot stand here; {mend}', scanner.start) from error
    tokens: list[Any] = []
    scanned: list[Any] = scanner.tokens
    for token in scanned:
        if token.kind == "PERIOD":
            raise fault(formula, 'there is no "." for all other columns; name the columns', token.place)
        if token.kind == "PIPE" and tokens and tokens[-1].kind == "PIPE":
            tokens[-1].lexeme = "||"
        else:
            tokens.append(token)
    return tokens


def tree(formula: str) -> Any:
    """The syntax tree of a formula.

    Raises:
        ValueError: it cannot be read; with the place.
    """
    formula = formula.strip()
    if not formula:
        raise ValueError('the formula is empty; write it as "y ~ x + (1 | g)"')
    _check_marks(formula)
    # The power of R, which has the same meaning among terms and in arithmetic as ** has.
    formula = formula.replace("^", "**")
    tokens = _tokens(formula)
    parser = Parser(tokens)
    try:
        found = parser.parse()
    except ParseError as error:
        place = getattr(parser.peek(), "place", len(formula))
        stray = parser.peek().lexeme
        raise fault(formula, f'"{stray}" cannot stand here' if stray else "it ends too soon", place) from error
    if not parser.at_end():
        token = parser.peek()
        mend = "; put random terms in brackets, as (x | g)" if token.kind == "PIPE" else ""
        raise fault(formula, f'"{token.lexeme}" cannot stand here{mend}', token.place)
    return found


def text(node: Any) -> str:
    """A node as one would write it."""
    match node:
        case Grouping():
            return f"({text(node.expression)})"
        case Binary():
            mark = node.operator.lexeme
            return f"{text(node.left)}{mark}{text(node.right)}" if mark in (":", "**") else _spaced(node, mark)
        case Unary():
            return f"{node.operator.lexeme}{text(node.right)}"
        case Call():
            return f"{text(node.callee)}({', '.join(map(text, node.args))})"
        case Assign():
            return f"{text(node.name)}={text(node.value)}"
        case Variable():
            return node.name.lexeme + ("" if node.level is None else f"[{node.level.value}]")
        case QuotedName():
            return node.expression.lexeme
        case _:
            return str(node.value if node.lexeme is None else node.lexeme)


def _spaced(node: Any, mark: str) -> str:
    return f"{text(node.left)} {mark} {text(node.right)}"


def column_name(node: Any) -> str | None:
    """The column that a node names and nothing else, None where it is more than a name."""
    while isinstance(node, Grouping):
        node = node.expression
    if isinstance(node, QuotedName):
        return node.expression.lexeme[1:-1]
    return node.name.lexeme if isinstance(node, Variable) and node.level is None else None


def children(node: Any) -> list[Any]:
    """The nodes right below; of a call its arguments' values."""
    match node:
        case Grouping():
            return [node.expression]
        case Binary():
            return [node.left, node.right]
        case Unary():
            return [node.right]
        case Call():
            return [arg.value if isinstance(arg, Assign) else arg for arg in node.args]
    return []


def walk(node: Any) -> Iterator[Any]:
    """A node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def named(node: Any) -> tuple[list[str], list[str]]:
    """Names of variables and of functions below a node, each once."""
    variables, functions = {}, {}
    for one in walk(node):
        if isinstance(one, Variable):
            variables[one.name.lexeme] = None
        elif isinstance(one, QuotedName):
            variables[one.expression.lexeme[1:-1]] = None
        elif isinstance(one, Call):
            functions[text(one.callee)] = None
    return list(variables), list(functions)


def _has_bar(node: Any) -> bool:
    return any(isinstance(one, Binary) and one.operator.kind == "PIPE" for one in walk(node))


def summands(node: Any, sign: str = "+") -> Iterator[tuple[str, Any]]:
    """Terms of a sum with their signs, brackets around sums taken away."""
    if isinstance(node, Binary) and node.operator.kind in ("PLUS", "MINUS"):
        yield from summands(node.left, sign)
        yield from summands(node.right, node.operator.lexeme)
    elif isinstance(node, Grouping) and sign == "+" and not isinstance(_inside(node), Variable):
        yield from summands(node.expression, sign)
    elif isinstance(node, Unary) and sign == "+":
        yield from summands(node.right, node.operator.lexeme)
    else:
        yield sign, node


def _inside(node: Any) -> Any:
    while isinstance(node, Grouping):
        node = node.expression
    return node


def _sum(terms: Iterable[tuple[str, Any]]) -> Any:
    """Their sum, which begins with an intercept."""
    kinds = {"+": "PLUS", "-": "MINUS"}
    start: Any = Literal(1)
    return functools.reduce(lambda left, term: Binary(left, Token(kinds[term[0]], term[0]), term[1]), terms, start)


def _interactions(node: Any, formula: str) -> list[tuple[Any, ...]]:
    """The grouping factors of what stands behind a bar: g, a:b, and of g/h both g and g:h."""
    node = _inside(node)
    if isinstance(node, Binary) and node.operator.kind == "COLON":
        (left,), (right,) = _one(node.left, formula), _one(node.right, formula)
        return [(*left, *right)]
    if isinstance(node, Binary) and node.operator.kind == "SLASH":
        outer = _interactions(node.left, formula)
        return [*outer, *((*outer[-1], *inner) for inner in _interactions(node.right, formula))]
    if isinstance(node, (Variable, QuotedName)) or isinstance(node, Call) or (isinstance(node, Literal) and node.value == 1):
        return [(node,)]
    if isinstance(node, Binary) and node.operator.kind in ("PLUS", "STAR"):
        left, right = text(node.left), text(node.right)
        both = f" + (1 | {left}:{right})" if node.operator.kind == "STAR" else ""
        raise fault(formula, f'"{text(node)}" cannot group rows; give each factor a term, as (1 | {left}) + (1 | {right}){both}')
    raise fault(formula, f'"{text(node)}" cannot group rows; behind a bar stand g, g:h or g/h')


def _one(node: Any, formula: str) -> list[tuple[Any, ...]]:
    found = _interactions(node, formula)
    if len(found) != 1:
        raise fault(formula, f'"{text(node)}" cannot stand in an interaction of groups; write the terms out')
    return found


def _bars(node: Any, structure: str, formula: str) -> list[Bar]:
    """The terms of one bar: several where groups are nested by a slash."""
    double = node.operator.lexeme == "||"
    if _has_bar(node.left) or _has_bar(node.right):
        raise fault(formula, f'"{text(node)}" has a bar within a bar; give each random term brackets of its own')
    if double and structure not in ("us", "diag"):
        raise fault(formula, f'"||" asks for independent effects, and "{structure}" for another covariance; write one bar')
    chosen = "diag" if double else SAME.get(structure, structure)
    shown = f"({text(node)})" if structure == "us" else f"{structure}({text(node)})"
    left = node.left if chosen in PLACED else _sum(summands(node.left))
    return [Bar(left, group, chosen, shown) for group in _interactions(node.right, formula)]


def _check_fixed(node: Any, formula: str) -> None:
    """No bars, no numbers but 0 and 1, no levels among fixed effects."""
    if _has_bar(node):
        raise fault(formula, f'the random term in "{text(node)}" must be added by itself, as + (x | g)')
    _check_numbers(node, formula)


def _check_numbers(node: Any, formula: str) -> None:
    if isinstance(node, Call):
        return
    if isinstance(node, Literal) and node.value not in (0, 1):
        raise fault(formula, f'"{text(node)}" is no term; write I(...) around arithmetic')
    if isinstance(node, Variable) and node.level is not None:
        raise fault(formula, f'"{text(node)}" chooses a level, which only the response can; write I({node.name.lexeme} == ...)')
    below = children(node)
    if isinstance(node, Binary) and node.operator.kind == "STAR_STAR":
        if not (isinstance(node.right, Literal) and isinstance(node.right.value, int) and node.right.value >= 1):
            raise fault(formula, f'the power in "{text(node)}" must be 1, 2, ...; write I(...) around arithmetic')
        below = [node.left]
    for child in below:
        _check_numbers(child, formula)


def parsed(formula: str, response: bool = True) -> Syntax:
    """The parts of a formula; without `response` of one like "~ x", whose left side may be empty.

    Raises:
        TypeError: it is not text.
        ValueError: it cannot be read; with the place and the mend.
    """
    if not isinstance(formula, str):
        raise TypeError(f'the formula must be text as "y ~ x + (1 | g)", got {type(formula).__name__}')
    left, tilde, right = formula.partition("~")
    if response and not (left.strip() and tilde):
        raise ValueError(f'the formula "{formula}" has no response; write it as "y ~ x + (1 | g)"')
    if tilde and not right.strip():
        raise ValueError(f'the formula "{formula}" ends at "~"; write "~ 1" for an intercept alone')
    if not tilde or not left.strip():
        formula = f"0 ~ {right if tilde else formula}"
    found = tree(formula)
    fixed, bars, offsets = [], [], []
    for sign, node in summands(found.right):
        if isinstance(node, Binary) and node.operator.kind == "PIPE":
            these = _bars(node, "us", formula)
        elif isinstance(node, Call) and len(node.args) >= 1 and _has_bar(node):
            these = _structured(node, formula)
        elif isinstance(node, Call) and text(node.callee) == "offset":
            if len(node.args) != 1:
                raise fault(formula, f'"{text(node)}" must hold one column, as offset(log(t))')
            offsets.append(node.args[0])
            continue
        else:
            _check_fixed(node, formula)
            if sign == "-" and not isinstance(node, Literal) and all(isinstance(one, Literal) for _, one in fixed):
                raise fault(formula, f'"- {text(node)}" takes away a term that is not there; leave it out')
            fixed.append((sign, node))
            continue
        if sign == "-":
            raise fault(formula, f"the random term {these[0].text} is taken away; leave it out instead")
        bars.extend(these)
    return Syntax(formula, found.left, _sum(fixed), tuple(bars), tuple(offsets))


def _structured(node: Any, formula: str) -> list[Bar]:
    word = text(node.callee)
    if word not in STRUCTURES:
        raise fault(
            formula, f'"{word}" is no covariance of random effects; there are {", ".join(STRUCTURES)}{near(word, STRUCTURES)}'
        )
    if len(node.args) != 1 or not (isinstance(node.args[0], Binary) and node.args[0].operator.kind == "PIPE"):
        raise fault(formula, f'"{text(node)}" must hold one term as {word}(x | g)')
    return _bars(node.args[0], word, formula)
