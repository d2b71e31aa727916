#pragma once
// The values of a Jinja program: those of Python that templates of chats use. Lists, dictionaries
// and functions are shared by copies, as in Python. Local; one thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "choir/core/error.hpp"

namespace choir::jinja {

class Value;
using List = std::vector<Value>;
using Pairs = std::vector<std::pair<std::string, Value>>;  ///< a dictionary in order of insertion

struct Arguments {
  List values;
  Pairs named;
  /// The argument at `at` or of this name, or nullptr.
  const Value* find(std::size_t at, std::string_view name) const;
};
using Function = std::function<Value(const Arguments&)>;

/// The program itself refused its input (raise_exception).
class Refusal : public DataError {
 public:
  using DataError::DataError;
};

[[noreturn]] void fail(const std::string& what);  ///< a DataError about the template

class Value {
 public:
  struct None {};
  Value() = default;  ///< undefined
  Value(None) : held_(nullptr) {}
  Value(bool b) : held_(b) {}
  Value(std::int64_t i) : held_(i) {}
  Value(double d) : held_(d) {}
  Value(std::string s) : held_(std::move(s)) {}
  Value(const char* s) : held_(std::string(s)) {}
  Value(List list) : held_(std::make_shared<List>(std::move(list))) {}
  Value(Pairs pairs) : held_(std::make_shared<Pairs>(std::move(pairs))) {}
  Value(Function f) : held_(std::make_shared<Function>(std::move(f))) {}

  bool undefined() const { return holds<std::monostate>(); }
  bool none() const { return holds<std::nullptr_t>(); }
  const bool* boolean() const { return std::get_if<bool>(&held_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&held_); }
  const double* real() const { return std::get_if<double>(&held_); }
  const std::string* text() const { return std::get_if<std::string>(&held_); }
  List* list() const { return shared<List>(); }
  Pairs* pairs() const { return shared<Pairs>(); }
  Function* function() const { return shared<Function>(); }
  bool number() const { return boolean() || integer() || real(); }
  double as_real() const;
  /// Throws for a value that is no integer; `what` names it.
  std::int64_t as_integer(const char* what) const;

  bool truthy() const;
  /// The text that printing writes.
  std::string printed() const;
  /// The text inside a list (a string with quotes).
  std::string repr() const;
  /// JSON as json.dumps(ensure_ascii=False) writes it; indent < 0: on one line.
  std::string json(int indent = -1, int depth = 0) const;
  /// The value under `key` of a dictionary, or nullptr.
  Value* find(std::string_view key) const;
  friend bool operator==(const Value& a, const Value& b);
  /// Numbers and texts; throws for other pairs of values.
  static bool less(const Value& a, const Value& b);

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(held_);
  }
  template <class T>
  T* shared() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&held_);
    return p == nullptr ? nullptr : p->get();
  }
  std::variant<std::monostate, std::nullptr_t, bool, std::int64_t, double, std::string,
               std::shared_ptr<List>, std::shared_ptr<Pairs>, std::shared_ptr<Function>>
      held_;
};

/// The starts of the characters of a text, and its end.
std::vector<std::size_t> character_starts(std::string_view text);

}  // namespace choir::jinja
