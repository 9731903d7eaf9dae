"""API pages from the library: signatures from the source, parameter texts from the docments."""
import ast
import copy
import importlib
import inspect
import re

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
        if texts.get(name):
            lines.append(f":param {name}: {one_line(texts[name])}")
            if parameter.annotation is not None:
                lines.append(f":type {name}: {ast.unparse(parameter.annotation)}")
    return lines + ([f":returns: {one_line(texts['return'])}"] if texts.get("return") else [])


def one_line(text: str) -> str:
    return " ".join(text.split())


def docstring(obj) -> list:
    "Docstring as lines, with its headings as bold words (a heading cannot stand inside an entry)."
    text = inspect.cleandoc(obj.__doc__ or "")
    if text.startswith(getattr(obj, "__name__", "") + "("):  # what @dataclass writes when there is none
        return []
    return re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.M).splitlines()


def entry(kind: str, signature: str, obj, node, inner=(), fence: str = "::::") -> list:
    return [f"{fence}{{py:{kind}}} {signature}", "", *docstring(obj), "", *fields(obj, node), "", *inner, fence, ""]


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
            inner += entry("method", f"{n.name}({arguments(n, skip_self=not static)})", function, n, fence=":::")
    if init is not None:
        signature = arguments(init, skip_self=True)
    else:
        parts = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        signature = ", ".join(n.target.id + (f"={default(n.value)}" if n.value else "") for n in parts)
    return entry("class", f"{node.name}({signature})" if signature else node.name, obj, node, inner)


def default(value) -> str:
    "The default of a dataclass field; a factory is shown by what it makes."
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        made = [k.value for k in value.keywords if k.arg == "default_factory"]
        if made:
            return ast.unparse(made[0].body) if isinstance(made[0], ast.Lambda) else f"{ast.unparse(made[0])}()"
    return ast.unparse(value)


def constant_entry(name: str, obj, source: list, node) -> list:
    "A constant with its value where that is short, and the comment behind it."
    alone = isinstance(node.targets[0], ast.Name)
    shown = " ".join(ast.unparse(node.value).split()) if alone else repr(obj)
    comment = source[node.end_lineno - 1].rpartition("# ")[2] if "  # " in source[node.end_lineno - 1] else ""
    lines = [f"::::{{py:data}} {name}"] + ([f":value: {shown}"] if len(shown) < 90 else []) + ["", comment]
    return [*lines, "::::", ""]


def module_page(module: str, title: str, link: str) -> str:
    "The API page of one module."
    loaded = importlib.import_module(f"{PACKAGE}.{module}")
    text = inspect.getsource(loaded)
    tree, source = ast.parse(text), text.splitlines()
    nodes = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    nodes |= {t.id: n for n in tree.body if isinstance(n, ast.Assign) for target in n.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    lines = [f"# {PACKAGE}.{module}", "", f"Defined, explained and checked in [{title}]({link}).", ""]
    lines += [f"```{{py:module}} {PACKAGE}.{module}\n```", ""]
    for name in loaded.__all__:
        node, obj = nodes[name], getattr(loaded, name)
        if isinstance(node, ast.ClassDef):
            lines += class_entry(node, obj, tree)
        elif isinstance(node, ast.FunctionDef):
            lines += entry("function", f"{name}({arguments(node, skip_self=False)})", obj, node)
        else:
            lines += constant_entry(name, obj, source, node)
    return "\n".join(lines)
