#include "src/data/chat/jinja/value.hpp"

#include <fmt/core.h>

#include <cmath>

namespace choir::jinja {

void fail(const std::string& what) {
  throw DataError("the chat template " + what,
                  "specify a built-in template, for example plain or chatml (--template)");
}

namespace {

/// A list may contain itself.
class Nesting {
 public:
  Nesting() {
    constexpr int kDeepestValue = 200;
    if (++depth_ > kDeepestValue) {
      --depth_;
      fail("has a value that is too deeply nested");
    }
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  static thread_local int depth_;
};
thread_local int Nesting::depth_ = 0;

}  // namespace

const Value* Arguments::find(std::size_t at, std::string_view name) const {
  if (at < values.size()) return &values[at];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

double Value::as_real() const {
  if (const bool* b = boolean()) return *b ? 1 : 0;
  if (const std::int64_t* i = integer()) return static_cast<double>(*i);
  if (const double* d = real()) return *d;
  fail("computes with " + repr() + ", which is no number");
}

std::int64_t Value::as_integer(const char* what) const {
  if (const bool* b = boolean()) return *b ? 1 : 0;
  if (const std::int64_t* i = integer()) return *i;
  fail(fmt::format("has {} as {}, not an integer", repr(), what));
}

bool Value::truthy() const {
  if (undefined() || none()) return false;
  if (number()) return as_real() != 0;
  if (const std::string* s = text()) return !s->empty();
  if (const List* l = list()) return !l->empty();
  if (const Pairs* p = pairs()) return !p->empty();
  return true;
}

std::string Value::printed() const {
  if (undefined()) return "";
  if (const std::string* s = text()) return *s;
  return repr();
}

std::string Value::repr() const {
  const Nesting nesting;
  if (undefined()) return "Undefined";
  if (none()) return "None";
  if (const bool* b = boolean()) return *b ? "True" : "False";
  if (const std::int64_t* i = integer()) return fmt::format("{}", *i);
  if (const double* d = real()) return fmt::format("{}", *d);
  std::string all;
  if (const std::string* s = text()) {
    const char quote =
        s->find('\'') != std::string::npos && s->find('"') == std::string::npos ? '"' : '\'';
    for (const char c : *s) {
      if (c == quote || c == '\\') all += '\\';
      if (c == '\n')
        all += "\\n";
      else
        all += c;
    }
    return quote + all + quote;
  }
  if (const List* l = list()) {
    for (const Value& one : *l) all += (all.empty() ? "" : ", ") + one.repr();
    return "[" + all + "]";
  }
  if (const Pairs* p = pairs()) {
    for (const auto& [key, value] : *p)
      all += (all.empty() ? "" : ", ") + Value(key).repr() + ": " + value.repr();
    return "{" + all + "}";
  }
  return "<function>";
}

std::string Value::json(int indent, int depth) const {
  const Nesting nesting;
  if (undefined() || function() != nullptr) fail("writes an undefined value as JSON");
  if (none()) return "null";
  if (const bool* b = boolean()) return *b ? "true" : "false";
  if (number()) return repr();
  std::string all;
  if (const std::string* s = text()) {
    for (const char c : *s) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\')
        all += {'\\', c};
      else if (c == '\n')
        all += "\\n";
      else if (c == '\r')
        all += "\\r";
      else if (c == '\t')
        all += "\\t";
      else if (byte < 0x20)
        all += fmt::format("\\u{:04x}", byte);
      else
        all += c;
    }
    return '"' + all + '"';
  }
  const auto line = [&](int at) {
    return indent < 0 ? std::string()
                      : "\n" + std::string(static_cast<std::size_t>(at * indent), ' ');
  };
  const std::string comma = indent < 0 ? ", " : ",";
  const auto add = [&](const std::string& one) {
    all += (all.empty() ? "" : comma) + line(depth + 1) + one;
  };
  const bool is_list = list() != nullptr;
  if (is_list)
    for (const Value& one : *list()) add(one.json(indent, depth + 1));
  else
    for (const auto& [key, value] : *pairs())
      add(Value(key).json() + ": " + value.json(indent, depth + 1));
  if (all.empty()) return is_list ? "[]" : "{}";
  return (is_list ? "[" : "{") + all + line(depth) + (is_list ? "]" : "}");
}

Value* Value::find(std::string_view key) const {
  if (Pairs* p = pairs())
    for (auto& [name, value] : *p)
      if (name == key) return &value;
  return nullptr;
}

bool operator==(const Value& a, const Value& b) {
  const Nesting nesting;
  if (a.number() && b.number()) return a.as_real() == b.as_real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr) return *a.list() == *b.list();
  if (a.pairs() != nullptr && b.pairs() != nullptr) {
    if (a.pairs()->size() != b.pairs()->size()) return false;
    for (const auto& [key, value] : *a.pairs()) {
      const Value* other = b.find(key);
      if (other == nullptr || !(value == *other)) return false;
    }
    return true;
  }
  return (a.none() && b.none()) || (a.undefined() && b.undefined()) ||
         (a.function() != nullptr && a.function() == b.function());
}

bool Value::less(const Value& a, const Value& b) {
  if (a.number() && b.number()) return a.as_real() < b.as_real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  fail(fmt::format("compares {} with {}", a.repr(), b.repr()));
}

std::vector<std::size_t> character_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

}  // namespace choir::jinja
