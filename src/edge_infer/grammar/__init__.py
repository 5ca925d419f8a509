"""Structured output: schemas, regular expressions and grammars as masks over the vocabulary.

llguidance, which does the work, is imported when the first grammar is compiled.
"""

from edge_infer.grammar.compiler import CompiledGrammar, GrammarCompiler
from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.matcher import Matcher
from edge_infer.grammar.outputs import StructuredOutputs

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarError", "Matcher", "StructuredOutputs"]
