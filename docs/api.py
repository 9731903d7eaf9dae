"""API pages from the library: signatures from the source, parameter texts from the docments."""
import ast
import copy
import importlib
import inspect
import io
import re
import tokenize

from fastcore.docments import docments

PACKAGE = "ltf_nb"


def modules(notebooks) -> dict:
    "Module name -> notebook, from each notebook's default_exp, in the notebooks' order."
    found = {}
    for path, nb in notebooks.items():
        for cell in nb["cells"]:
            match = re.match(r"#\| default_exp (\w+)", "".join(cell["source"]))
            if match:
                found[match[1]] = path
    return found


def public_names(names) -> dict:
    "Name -> module for each function and class that one module alone makes public."
    found, twice = {}, set()
    for module in names:
        loaded = importlib.import_module(f"{PACKAGE}.{module}")
        for name in loaded.__all__:
            if inspect.isclass(getattr(loaded, name)) or inspect.isfunction(getattr(loaded, name)):
                twice |= {name} & set(found)
                found[name] = module
    return {name: module for name, module in found.items() if name not in twice}


def parameters(node) -> list:
    "The parameters of a function, or the fields of a class, as syntax-tree nodes with an annotation."
    if isinstance(node, ast.ClassDef):
        return [n for n in node.body if isinstance(n, ast.AnnAssign)]
    args = node.args
    return [a for a in [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg] if a]


def arguments(node: ast.FunctionDef, skip_self: bool) -> str:
    "The parameters of a signature as written, without annotations."
    bare = copy.deepcopy(node)
    for parameter in parameters(bare):
        parameter.annotation = None
    bare.args.args = bare.args.args[skip_self:]
    return ast.unparse(bare.args)


def fields(obj, node) -> list:
    "Field list of an object's parameters and of what it returns: texts from docments, types as written."
    texts, lines = docments(obj), []
    for parameter in parameters(node):
        name = parameter.target.id if isinstance(parameter, ast.AnnAssign) else parameter.arg
        text = texts.get(name) or getattr(parameter, "comment", "")
        if text:
            lines.append(f":param {name}: {one_line(text)}")
            if parameter.annotation is not None:
                lines.append(f":type {name}: {typed(parameter.annotation, obj)}")
    return lines + ([f":returns: {one_line(texts['return'])}"] if texts.get("return") else [])


def typed(annotation, obj) -> str:
    "A type as written, its classes of this package by their full names, since two modules may use the same short one."
    known = vars(importlib.import_module(obj.__module__))

    def full(match):
        found = known.get(match[0])
        return f"~{found.__module__}.{found.__name__}" if inspect.isclass(found) and found.__module__.startswith(f"{PACKAGE}.") else match[0]
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*(?![\w.])", full, ast.unparse(annotation))


def one_line(text: str) -> str:
    "A text on one line, with options such as --cores as code, or Sphinx would make a dash of their hyphens."
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else re.sub(r"(?<![\w-])--\w+", r"`\g<0>`", part) for i, part in enumerate(parts))


def docstring(obj) -> list:
    "Docstring as lines, with its headings as bold words (a heading cannot stand inside an entry)."
    text = inspect.cleandoc(obj.__doc__ or "")
    if text.startswith(getattr(obj, "__name__", "") + "("):  # what @dataclass writes when there is none
        return []
    return re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.M).splitlines()


def entry(kind: str, signature: str, obj, node, inner=(), fence: str = "::::", otherwise=()) -> list:
    text = docstring(obj) or list(otherwise)
    return [f"{fence}{{py:{kind}}} {signature}", "", *text, "", *fields(obj, node), "", *inner, fence, ""]


def promised(owner, name: str) -> list:
    "Where a method without a docstring is described: the protocol that its class fulfils."
    for module, protocol in (("policies", "Policy"), ("lucbfair", "Task"), ("features", "FeatureMap")):
        asked = {n: f for n, f in vars(getattr(importlib.import_module(f"{PACKAGE}.{module}"), protocol)).items() if inspect.isfunction(f)}
        if name in asked and name[0] != "_" and all(hasattr(owner, n) for n in asked if n[0] != "_"):
            return [f"{asked[name].__doc__}, as {{py:obj}}`{protocol} <{PACKAGE}.{module}.{protocol}>` asks."]
    return []


def measured(loaded, obj) -> list:
    "What a function that measures a claim stands for: the claim, its place and the rule of its verdict."
    return [f"Measure the claim: {c.text} ({c.place}) Rule: {c.rule}" for c in getattr(loaded, "CLAIMS", {}).values() if c.measure is obj][:1]


def class_entry(node: ast.ClassDef, obj, tree) -> list:
    "A class with its public methods: those in its body and those patched on to it."
    inner, init = [], None
    patched = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.args and n.args.args[0].annotation is not None
               and any(ast.unparse(d).startswith("patch") for d in n.decorator_list)
               and ast.unparse(n.args.args[0].annotation) == node.name]
    for n in [*node.body, *patched]:
        if not isinstance(n, ast.FunctionDef):
            continue
        if n.name == "__init__":
            init = n
        if n.name.startswith("_") or not hasattr(obj, n.name):
            continue
        member = inspect.getattr_static(obj, n.name)
        static = isinstance(member, staticmethod)
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(member, property):
            inner += entry("property", n.name, function, n, fence=":::")
        else:
            inner += entry("method", f"{n.name}({arguments(n, skip_self=not static)})", function, n, fence=":::", otherwise=promised(obj, n.name))
    if init is not None:
        signature = arguments(init, skip_self=True)
    else:
        parts = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        signature = ", ".join(n.target.id + (f"={made}" if (made := default(n.value)) else "") for n in parts)
    return entry("class", f"{node.name}({signature})" if signature else node.name, obj, node, inner)


def default(value) -> str:
    "The default of a dataclass field, if it has one; a factory is shown by what it makes."
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {k.arg: k.value for k in value.keywords}
        made = given.get("default_factory")
        if made is not None:
            return ast.unparse(made.body) if isinstance(made, ast.Lambda) else f"{ast.unparse(made)}()"
        value = given.get("default")
    return ast.unparse(value) if value is not None else ""


def comments(text: str) -> dict:
    "Line number -> the comment behind its code."
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT and t.line[:t.start[1]].strip()}


def constant_entry(name: str, obj, behind: dict, node) -> list:
    "A constant with its value where that is short, and the comment behind it."
    alone = isinstance(node.targets[0], ast.Name)
    shown = " ".join(ast.unparse(node.value).split()) if alone else " ".join(repr(obj).split())
    filled_later = shown in ("{}", "[]") and len(obj) > 0
    lines = [f"::::{{py:data}} {name}"] + ([f":value: {shown}"] if len(shown) < 90 and not filled_later else [])
    return [*lines, "", behind.get(node.end_lineno, ""), "::::", ""]


def module_page(module: str, title: str, link: str) -> str:
    "The API page of one module."
    loaded = importlib.import_module(f"{PACKAGE}.{module}")
    text = inspect.getsource(loaded)
    tree, behind = ast.parse(text), comments(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):  # docments passes over the fields of a protocol
            node.comment = behind.get(node.end_lineno, "")
    nodes = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    nodes |= {t.id: n for n in tree.body if isinstance(n, ast.Assign) for target in n.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    lines = [f"# {PACKAGE}.{module}", "", f"Defined, explained and checked in [{title}]({link}).", ""]
    lines += [f"```{{py:module}} {PACKAGE}.{module}\n```", ""]
    for name in loaded.__all__:
        node, obj = nodes[name], getattr(loaded, name)
        if isinstance(node, ast.ClassDef):
            lines += class_entry(node, obj, tree)
        elif isinstance(node, ast.FunctionDef):
            lines += entry("function", f"{name}({arguments(node, skip_self=False)})", obj, node, otherwise=measured(loaded, obj))
        else:
            lines += constant_entry(name, obj, behind, node)
    return "\n".join(lines)
