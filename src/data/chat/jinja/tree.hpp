#pragma once
// A Jinja program as a tree: statements and expressions. Pure.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/chat/jinja/value.hpp"

namespace choir::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    literal,
    name,
    list,
    dictionary,   ///< parts: key, value, key, value, ...
    unary,        ///< text: "not", "-", "+"
    binary,       ///< text: the operator; "and" and "or" evaluate the right side only if needed
    conditional,  ///< parts: condition, value, other value (may be absent)
    attribute,    ///< text: its name
    item,
    slice,   ///< parts: value, start, stop, step (nullptr where left out)
    call,    ///< parts: function, arguments
    filter,  ///< text: its name; parts: value, arguments
    test,    ///< likewise
  };
  Kind kind = Kind::literal;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  ///< arguments with names
};

struct Statement {
  enum class Kind { text, print, choice, loop, set, macro, filter, group, leave, next };
  Kind kind = Kind::text;
  std::string text;                  ///< of text; the name of a macro; the member of a namespace
  std::vector<std::string> names;    ///< targets of set and of a loop, parameters of a macro
  std::vector<ExpressionPtr> parts;  ///< conditions, values, defaults of parameters
  ExpressionPtr only_if;             ///< of a loop
  /// The branches of a choice (one more than conditions: `else`); the body and the `else` of a
  /// loop; a single body of others.
  std::vector<std::vector<Statement>> bodies;
};
using Program = std::vector<Statement>;

/// Parses with the settings of transformers: trim_blocks, lstrip_blocks, and the tags break,
/// continue and generation. Throws DataError with the line for anything unknown.
Program parse(std::string_view source);

/// Runs a program with `variables`. Throws DataError for an unknown filter, test or function, for
/// values on which an operation is not defined, and for a program that does not end in time, and
/// Refusal where the program calls raise_exception.
std::string run(const Program& program, const Pairs& variables);

/// Filters, tests and methods of values (filters.cpp). They throw DataError for unknown names.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// A method of a text, list or dictionary as a function; undefined if there is none.
Value method_of(const Value& value, const std::string& name);

}  // namespace choir::jinja
