// The filters, tests and methods of Jinja programs.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "src/data/chat/jinja/tree.hpp"

namespace choir::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

std::string stripped(std::string_view text, bool front, bool back,
                     std::string_view characters = kBlanks) {
  if (front) text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  if (back) text = text.substr(0, text.find_last_not_of(characters) + 1);
  return std::string(text);
}

const std::string& text_of(const Value& value, const std::string& used_by) {
  if (value.text() == nullptr)
    fail(fmt::format("uses '{}' on {}, which is no text", used_by, value.repr()));
  return *value.text();
}

std::string in_case(std::string text, int (*change)(int)) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x80)
      c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return text;
}

std::string title(std::string text, bool every_word) {
  bool begins = true;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) c = static_cast<char>(begins ? std::toupper(byte) : std::tolower(byte));
    begins = every_word && byte < 0x80 && std::isalpha(byte) == 0;
  }
  return text;
}

List split(std::string_view text, const Value* separator, std::int64_t most) {
  List parts;
  if (separator == nullptr || separator->none()) {
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
      if (text.empty()) return parts;
      if (most >= 0 && std::ssize(parts) == most) {
        parts.emplace_back(std::string(text));
        return parts;
      }
      const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
      parts.emplace_back(std::string(text.substr(0, end)));
      text.remove_prefix(end);
    }
  }
  const std::string& by = text_of(*separator, "split");
  if (by.empty()) fail("splits a text at an empty text");
  for (;;) {
    const std::size_t end = most >= 0 && std::ssize(parts) == most ? text.npos : text.find(by);
    parts.emplace_back(std::string(text.substr(0, end)));
    if (end == text.npos) return parts;
    text.remove_prefix(end + by.size());
  }
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  std::string all;
  std::size_t done = 0;
  for (auto at = text.find(from); at != text.npos; at = text.find(from, done)) {
    all.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return all.append(text, done);
}

/// True if a text begins (or ends) with one of the texts of the argument.
bool has_end(const std::string& text, const Arguments& a, bool front) {
  if (a.values.empty()) fail("calls startswith() or endswith() without a text");
  const List ends = a.values[0].list() != nullptr ? *a.values[0].list() : List{a.values[0]};
  return std::any_of(ends.begin(), ends.end(), [&](const Value& end) {
    const std::string& part = text_of(end, "startswith");
    return front ? text.starts_with(part) : text.ends_with(part);
  });
}

std::int64_t length(const Value& value) {
  if (value.text() != nullptr) return std::ssize(character_starts(*value.text())) - 1;
  if (value.list() != nullptr) return std::ssize(*value.list());
  if (value.pairs() != nullptr) return std::ssize(*value.pairs());
  if (value.undefined()) return 0;
  fail(fmt::format("takes the length of {}", value.repr()));
}

List items(const Value& value) {
  List all;
  if (value.undefined()) return all;
  if (value.pairs() == nullptr) fail(fmt::format("lists the items of {}", value.repr()));
  for (const auto& [key, held] : *value.pairs()) all.emplace_back(List{key, held});
  return all;
}

List as_list(const Value& value) {
  if (value.list() != nullptr) return *value.list();
  List all;
  if (value.pairs() != nullptr)
    for (const auto& [key, held] : *value.pairs()) all.emplace_back(key);
  else if (value.text() != nullptr)
    for (const auto starts = character_starts(*value.text()); const std::size_t at : starts) {
      if (at == value.text()->size()) break;
      std::size_t end = at + 1;
      while (end < value.text()->size() &&
             (static_cast<unsigned char>((*value.text())[end]) & 0xC0) == 0x80)
        ++end;
      all.emplace_back(value.text()->substr(at, end - at));
    }
  else if (!value.undefined())
    fail(fmt::format("makes a list of {}", value.repr()));
  return all;
}

Value member(const Value& value, const std::string& name) {
  const Value* found = value.find(name);
  return found == nullptr ? Value() : *found;
}

/// select, reject, selectattr, rejectattr.
Value chosen(const Value& value, const Arguments& a, bool keep, bool by_member) {
  List kept;
  const std::size_t first = by_member ? 1 : 0;
  if (a.values.size() < first) fail("selects without the name of a member");
  Arguments rest;
  for (std::size_t i = first + 1; i < a.values.size(); ++i) rest.values.push_back(a.values[i]);
  for (const Value& one : as_list(value)) {
    const Value tested = by_member ? member(one, text_of(a.values[0], "selectattr")) : one;
    const bool passes = a.values.size() > first
                            ? apply_test(text_of(a.values[first], "select"), tested, rest)
                            : tested.truthy();
    if (passes == keep) kept.push_back(one);
  }
  return kept;
}

Value mapped(const Value& value, const Arguments& a) {
  List all;
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [name, given] : a.named) {
    if (name == "attribute") attribute = &given;
    if (name == "default") otherwise = &given;
  }
  Arguments rest;
  for (std::size_t i = 1; i < a.values.size(); ++i) rest.values.push_back(a.values[i]);
  for (const Value& one : as_list(value)) {
    if (attribute == nullptr && a.values.empty()) fail("uses 'map' without a filter");
    Value to = attribute != nullptr ? member(one, text_of(*attribute, "map"))
                                    : apply_filter(text_of(a.values[0], "map"), one, rest);
    if (to.undefined() && otherwise != nullptr) to = *otherwise;
    all.push_back(std::move(to));
  }
  return all;
}

Value joined(const Value& value, const Arguments& a) {
  const Value* by = a.find(0, "d");
  const Value* attribute = a.find(1, "attribute");
  std::string all;
  bool first = true;
  for (const Value& one : as_list(value)) {
    if (!first && by != nullptr) all += by->printed();
    first = false;
    all += (attribute != nullptr ? member(one, attribute->printed()) : one).printed();
  }
  return all;
}

Value indented(const std::string& text, const Arguments& a) {
  const Value* width = a.find(0, "width");
  const Value* front = a.find(1, "first");
  const Value* empty = a.find(2, "blank");
  const auto by = width == nullptr ? 4 : width->as_integer("a width");
  const std::string blanks =
      width != nullptr && width->text() != nullptr
          ? *width->text()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(by, 0, 1000)), ' ');
  const Value end("\n");
  std::string all;
  bool begins = true;
  for (const Value& line : split(text, &end, -1)) {
    const bool pads = begins ? front != nullptr && front->truthy()
                             : !line.text()->empty() || (empty != nullptr && empty->truthy());
    all += (begins ? "" : "\n") + (pads ? blanks : "") + *line.text();
    begins = false;
  }
  return all;
}

Value as_integer(const Value& value) {
  if (value.number()) return static_cast<std::int64_t>(value.as_real());
  return value.text() == nullptr
             ? std::int64_t{0}
             : static_cast<std::int64_t>(std::strtoll(value.text()->c_str(), nullptr, 10));
}

Value sorted(List list, const Arguments& a) {
  const Value* attribute = nullptr;
  for (const auto& [name, given] : a.named)
    if (name == "attribute") attribute = &given;
  std::stable_sort(list.begin(), list.end(), [&](const Value& x, const Value& y) {
    return attribute == nullptr
               ? Value::less(x, y)
               : Value::less(member(x, attribute->printed()), member(y, attribute->printed()));
  });
  return list;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& a) {
  if (name == "trim" || name == "strip") {
    const Value* characters = a.find(0, "chars");
    return stripped(value.printed(), true, true,
                    characters == nullptr ? kBlanks : std::string_view(text_of(*characters, name)));
  }
  if (name == "length" || name == "count") return length(value);
  if (name == "tojson") {
    const Value* indent = nullptr;
    for (const auto& [key, given] : a.named)
      if (key == "indent") indent = &given;
    if (indent == nullptr && !a.values.empty()) indent = &a.values[0];
    return value.json(
        indent == nullptr || indent->none()
            ? -1
            : static_cast<int>(std::clamp<std::int64_t>(indent->as_integer("an indent"), 0, 100)));
  }
  if (name == "string" || name == "safe") return value.printed();
  if (name == "upper") return in_case(value.printed(), std::toupper);
  if (name == "lower") return in_case(value.printed(), std::tolower);
  if (name == "capitalize") return title(value.printed(), false);
  if (name == "title") return title(value.printed(), true);
  if (name == "default" || name == "d") {
    const Value* other = a.find(0, "default_value");
    const Value* also_false = a.find(1, "boolean");
    const bool missing =
        value.undefined() || (also_false != nullptr && also_false->truthy() && !value.truthy());
    return !missing ? value : other == nullptr ? Value("") : *other;
  }
  if (name == "first" || name == "last") {
    const List list = as_list(value);
    if (list.empty()) return {};
    return name == "first" ? list.front() : list.back();
  }
  if (name == "list") return as_list(value);
  if (name == "items") return items(value);
  if (name == "dictsort") {
    List list = items(value);
    std::stable_sort(list.begin(), list.end(), [](const Value& x, const Value& y) {
      return Value::less(x.list()->front(), y.list()->front());
    });
    return list;
  }
  if (name == "join") return joined(value, a);
  if (name == "map") return mapped(value, a);
  if (name == "select" || name == "reject") return chosen(value, a, name == "select", false);
  if (name == "selectattr" || name == "rejectattr")
    return chosen(value, a, name == "selectattr", true);
  if (name == "reverse") {
    List list = as_list(value);
    std::reverse(list.begin(), list.end());
    if (value.text() == nullptr) return list;
    return joined(Value(list), {});
  }
  if (name == "sort") return sorted(as_list(value), a);
  if (name == "unique") {
    List list;
    for (const Value& one : as_list(value))
      if (std::find(list.begin(), list.end(), one) == list.end()) list.push_back(one);
    return list;
  }
  if (name == "replace") {
    if (a.values.size() < 2) fail("uses 'replace' without two texts");
    return replaced(value.printed(), text_of(a.values[0], name), text_of(a.values[1], name));
  }
  if (name == "indent") return indented(value.printed(), a);
  if (name == "int") return as_integer(value);
  if (name == "float")
    return value.number() ? value.as_real() : std::strtod(value.printed().c_str(), nullptr);
  if (name == "abs")
    return value.integer() != nullptr ? Value(std::abs(*value.integer()))
                                      : Value(std::abs(value.as_real()));
  fail(fmt::format("uses the filter '{}', which is unknown here", name));
}

bool apply_test(const std::string& name, const Value& value, const Arguments& a) {
  const auto other = [&]() -> const Value& {
    if (a.values.empty()) fail(fmt::format("uses the test '{}' without a value", name));
    return a.values[0];
  };
  if (name == "defined") return !value.undefined();
  if (name == "undefined") return value.undefined();
  if (name == "none") return value.none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.pairs() != nullptr;
  if (name == "sequence" || name == "iterable")
    return value.list() != nullptr || value.pairs() != nullptr || value.text() != nullptr;
  if (name == "boolean") return value.boolean() != nullptr;
  if (name == "true") return value.boolean() != nullptr && *value.boolean();
  if (name == "false") return value.boolean() != nullptr && !*value.boolean();
  if (name == "number") return value.number();
  if (name == "integer") return value.integer() != nullptr;
  if (name == "float") return value.real() != nullptr;
  if (name == "callable") return value.function() != nullptr;
  if (name == "odd") return value.as_integer("a number") % 2 != 0;
  if (name == "even") return value.as_integer("a number") % 2 == 0;
  if (name == "divisibleby") {
    const std::int64_t by = other().as_integer("a divisor");
    if (by == 0) fail("divides by zero");
    return value.as_integer("a number") % by == 0;
  }
  if (name == "equalto" || name == "eq" || name == "sameas") return value == other();
  if (name == "ne") return !(value == other());
  if (name == "lt" || name == "lessthan") return Value::less(value, other());
  if (name == "gt" || name == "greaterthan") return Value::less(other(), value);
  if (name == "le") return !Value::less(other(), value);
  if (name == "ge") return !Value::less(value, other());
  if (name == "lower") return value.printed() == in_case(value.printed(), std::tolower);
  if (name == "upper") return value.printed() == in_case(value.printed(), std::toupper);
  if (name == "in") {
    const Value& whole = other();
    if (whole.text() != nullptr)
      return whole.text()->find(text_of(value, "in")) != std::string::npos;
    if (whole.pairs() != nullptr) return whole.find(value.printed()) != nullptr;
    if (whole.list() != nullptr)
      return std::find(whole.list()->begin(), whole.list()->end(), value) != whole.list()->end();
    if (whole.undefined()) return false;
    fail(fmt::format("searches in {}", whole.repr()));
  }
  fail(fmt::format("uses the test '{}', which is unknown here", name));
}

Value method_of(const Value& value, const std::string& name) {
  using Method = std::function<Value(const Value&, const Arguments&)>;
  static const std::map<std::string, Method, std::less<>> of_texts{
      {"strip",
       [](const Value& v, const Arguments& a) -> Value {
         return stripped(
             *v.text(), true, true,
             a.values.empty() ? kBlanks : std::string_view(text_of(a.values[0], "strip")));
       }},
      {"lstrip",
       [](const Value& v, const Arguments& a) -> Value {
         return stripped(
             *v.text(), true, false,
             a.values.empty() ? kBlanks : std::string_view(text_of(a.values[0], "lstrip")));
       }},
      {"rstrip",
       [](const Value& v, const Arguments& a) -> Value {
         return stripped(
             *v.text(), false, true,
             a.values.empty() ? kBlanks : std::string_view(text_of(a.values[0], "rstrip")));
       }},
      {"split",
       [](const Value& v, const Arguments& a) -> Value {
         const Value* most = a.find(1, "maxsplit");
         return split(*v.text(), a.find(0, "sep"),
                      most == nullptr ? -1 : most->as_integer("maxsplit"));
       }},
      {"startswith",
       [](const Value& v, const Arguments& a) -> Value { return has_end(*v.text(), a, true); }},
      {"endswith",
       [](const Value& v, const Arguments& a) -> Value { return has_end(*v.text(), a, false); }},
      {"replace", [](const Value& v, const Arguments& a) { return apply_filter("replace", v, a); }},
      {"upper", [](const Value& v, const Arguments& a) { return apply_filter("upper", v, a); }},
      {"lower", [](const Value& v, const Arguments& a) { return apply_filter("lower", v, a); }},
      {"title", [](const Value& v, const Arguments& a) { return apply_filter("title", v, a); }},
      {"capitalize",
       [](const Value& v, const Arguments& a) { return apply_filter("capitalize", v, a); }},
      {"join", [](const Value& v, const Arguments& a) -> Value {
         return a.values.empty() ? Value("") : joined(a.values[0], {{v}, {}});
       }}};
  static const std::map<std::string, Method, std::less<>> of_pairs{
      {"items", [](const Value& v, const Arguments&) -> Value { return items(v); }},
      {"keys", [](const Value& v, const Arguments&) -> Value { return as_list(v); }},
      {"values",
       [](const Value& v, const Arguments&) -> Value {
         List list;
         for (const auto& [key, held] : *v.pairs()) list.push_back(held);
         return list;
       }},
      {"get",
       [](const Value& v, const Arguments& a) -> Value {
         if (a.values.empty()) fail("calls get() without a key");
         const Value* found = v.find(a.values[0].printed());
         return found != nullptr      ? *found
                : a.values.size() > 1 ? a.values[1]
                                      : Value(Value::None{});
       }},
      {"update", [](const Value& v, const Arguments& a) -> Value {
         for (const auto& [key, held] : a.values.empty() || a.values[0].pairs() == nullptr
                                            ? a.named
                                            : Pairs(*a.values[0].pairs())) {
           if (Value* there = v.find(key))
             *there = held;
           else
             v.pairs()->emplace_back(key, held);
         }
         return Value::None{};
       }}};
  static const std::map<std::string, Method, std::less<>> of_lists{
      {"append",
       [](const Value& v, const Arguments& a) -> Value {
         if (a.values.empty()) fail("calls append() without a value");
         if (v.list()->size() > 1'000'000) fail("makes a list without end");
         v.list()->push_back(a.values[0]);
         return Value::None{};
       }},
      {"pop",
       [](const Value& v, const Arguments& a) -> Value {
         if (v.list()->empty()) fail("takes from an empty list");
         const auto size = std::ssize(*v.list());
         std::int64_t at = a.values.empty() ? size - 1 : a.values[0].as_integer("a position");
         at = std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size - 1);
         const Value taken = (*v.list())[static_cast<std::size_t>(at)];
         v.list()->erase(v.list()->begin() + at);
         return taken;
       }},
  };
  const auto& methods = value.text() != nullptr    ? of_texts
                        : value.pairs() != nullptr ? of_pairs
                                                   : of_lists;
  if (value.text() == nullptr && value.pairs() == nullptr && value.list() == nullptr) return {};
  const auto found = methods.find(name);
  if (found == methods.end()) return {};
  return Function(
      [value, &method = found->second](const Arguments& a) { return method(value, a); });
}

}  // namespace choir::jinja
