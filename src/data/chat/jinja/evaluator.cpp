// Runs Jinja programs.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "src/data/chat/jinja/tree.hpp"

namespace choir::jinja {
namespace {

constexpr std::int64_t kMostSteps = 500'000;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kMostItems = 1'000'000;
constexpr int kDeepestCall = 100;
using Kind = Expression::Kind;

/// Names of one block; those of the blocks around it are found through `outer`.
struct Scope {
  const Scope* outer = nullptr;
  Pairs names;

  const Value* find(const std::string& name) const {
    for (const Scope* s = this; s != nullptr; s = s->outer)
      for (const auto& [key, value] : s->names)
        if (key == name) return &value;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, held] : names)
      if (key == name) {
        held = std::move(value);
        return;
      }
    names.emplace_back(name, std::move(value));
  }
};

Value range_of(const Arguments& a) {
  std::int64_t start = 0, stop = 0, step = 1;
  if (a.values.empty()) fail("calls range() without arguments");
  stop = a.values[0].as_integer("a bound of range()");
  if (a.values.size() > 1) {
    start = stop;
    stop = a.values[1].as_integer("a bound of range()");
  }
  if (a.values.size() > 2) step = a.values[2].as_integer("the step of range()");
  if (step == 0 || std::llabs(stop - start) / std::llabs(step) > 1'000'000)
    fail("calls range() without a step or with too many numbers");
  List list;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) list.emplace_back(i);
  return list;
}

Pairs built_in_names() {
  const auto function = [](Function f) { return Value(std::move(f)); };
  Pairs names;
  names.emplace_back("raise_exception", function([](const Arguments& a) -> Value {
                       throw Refusal("the chat template refuses it: " +
                                         (a.values.empty() ? "" : a.values[0].printed()),
                                     "change the turns, or specify another template");
                     }));
  names.emplace_back("strftime_now", function([](const Arguments& a) -> Value {
                       const Value* format = a.find(0, "format");
                       if (format == nullptr || format->text() == nullptr)
                         fail("calls strftime_now() without a format");
                       const std::time_t now = std::time(nullptr);
                       std::tm local{};
                       localtime_r(&now, &local);
                       char text[256];
                       return std::string(
                           text, std::strftime(text, sizeof text, format->text()->c_str(), &local));
                     }));
  names.emplace_back("range", function(range_of));
  for (const char* name : {"namespace", "dict"})
    names.emplace_back(name, function([](const Arguments& a) -> Value {
                         Pairs pairs = a.values.empty() || a.values[0].pairs() == nullptr
                                           ? Pairs{}
                                           : *a.values[0].pairs();
                         for (const auto& [key, value] : a.named) {
                           std::erase_if(pairs, [&k = key](const auto& p) { return p.first == k; });
                           pairs.emplace_back(key, value);
                         }
                         return pairs;
                       }));
  return names;
}

std::int64_t inside(std::int64_t at, std::int64_t size) {
  return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
}

class Evaluator {
 public:
  explicit Evaluator(const Pairs& variables) {
    globals_.names = built_in_names();
    for (const auto& [name, value] : variables) globals_.set(name, value);
  }

  std::string go(const Program& program) {
    run(program, globals_);
    return std::move(out_);
  }

 private:
  enum class After { next_statement, next_turn, end_of_loop };

  void step() {
    if (++steps_ > kMostSteps || out_.size() > kMostBytes) fail("does not end in time");
  }

  After run(const std::vector<Statement>& body, Scope& scope) {
    for (const Statement& s : body) {
      step();
      const After after = run(s, scope);
      if (after != After::next_statement) return after;
    }
    return After::next_statement;
  }

  After run(const Statement& s, Scope& scope) {
    switch (s.kind) {
      case Statement::Kind::text:
        out_ += s.text;
        break;
      case Statement::Kind::print:
        out_ += value_of(*s.parts[0], scope).printed();
        break;
      case Statement::Kind::choice:
        for (std::size_t i = 0; i < s.bodies.size(); ++i)
          if (i == s.parts.size() || value_of(*s.parts[i], scope).truthy())
            return run(s.bodies[i], scope);
        break;
      case Statement::Kind::loop:
        loop(s, scope);
        break;
      case Statement::Kind::set:
        set(s, scope);
        break;
      case Statement::Kind::macro:
        scope.set(s.text, macro(s, scope));
        break;
      case Statement::Kind::filter:
        out_ += apply_filter(s.text, captured(s.bodies[0], scope), {}).printed();
        break;
      case Statement::Kind::group:
        return run(s.bodies[0], scope);
      case Statement::Kind::leave:
        return After::end_of_loop;
      case Statement::Kind::next:
        return After::next_turn;
    }
    return After::next_statement;
  }

  std::string captured(const std::vector<Statement>& body, const Scope& outer) {
    std::string before = std::move(out_);
    out_.clear();
    Scope scope{&outer, {}};
    run(body, scope);
    std::swap(before, out_);
    return before;
  }

  void set(const Statement& s, Scope& scope) {
    const Value value =
        s.parts.empty() ? Value(captured(s.bodies[0], scope)) : value_of(*s.parts[0], scope);
    if (!s.text.empty()) {
      const Value* space = scope.find(s.names[0]);
      if (space == nullptr || space->pairs() == nullptr)
        fail(fmt::format("sets a member of '{}', which is no namespace", s.names[0]));
      if (Value* held = space->find(s.text))
        *held = value;
      else
        space->pairs()->emplace_back(s.text, value);
      return;
    }
    bind(s.names, value, scope);
  }

  static void bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
    if (names.size() == 1) return scope.set(names[0], value);
    if (value.list() == nullptr || value.list()->size() != names.size())
      fail(fmt::format("unpacks {} into {} names", value.repr(), names.size()));
    for (std::size_t i = 0; i < names.size(); ++i) scope.set(names[i], (*value.list())[i]);
  }

  static List items_of(const Value& value) {
    if (value.list() != nullptr) return *value.list();
    List items;
    if (value.pairs() != nullptr) {
      for (const auto& [key, held] : *value.pairs()) items.emplace_back(key);
      return items;
    }
    if (value.text() != nullptr) {
      const auto starts = character_starts(*value.text());
      for (std::size_t i = 0; i + 1 < starts.size(); ++i)
        items.emplace_back(value.text()->substr(starts[i], starts[i + 1] - starts[i]));
      return items;
    }
    if (value.undefined()) return items;
    fail(fmt::format("loops over {}", value.repr()));
  }

  void loop(const Statement& s, Scope& outer) {
    List items = items_of(value_of(*s.parts[0], outer));
    if (s.only_if != nullptr)
      std::erase_if(items, [&](const Value& item) {
        Scope scope{&outer, {}};
        bind(s.names, item, scope);
        return !value_of(*s.only_if, scope).truthy();
      });
    const auto count = std::ssize(items);
    if (count == 0 && s.bodies.size() > 1) {
      Scope scope{&outer, {}};
      run(s.bodies[1], scope);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      step();
      Scope scope{&outer, {}};
      const auto at = static_cast<std::size_t>(i);
      scope.set("loop", Pairs{{"index", i + 1},
                              {"index0", i},
                              {"revindex", count - i},
                              {"revindex0", count - i - 1},
                              {"first", i == 0},
                              {"last", i + 1 == count},
                              {"length", static_cast<std::int64_t>(count)},
                              {"previtem", i > 0 ? items[at - 1] : Value()},
                              {"nextitem", i + 1 < count ? items[at + 1] : Value()}});
      bind(s.names, items[at], scope);
      if (run(s.bodies[0], scope) == After::end_of_loop) break;
    }
  }

  /// A macro sees the names of the whole program, not those of its caller.
  Value macro(const Statement& s, Scope&) {
    return Function([this, &s](const Arguments& a) -> Value {
      if (++calls_ > kDeepestCall) fail("calls macros too deeply");
      Scope scope{&globals_, {}};
      for (std::size_t i = 0; i < s.names.size(); ++i) {
        const Value* given = a.find(i, s.names[i]);
        scope.set(s.names[i], given != nullptr        ? *given
                              : s.parts[i] != nullptr ? value_of(*s.parts[i], scope)
                                                      : Value());
      }
      std::string text = captured(s.bodies[0], scope);
      --calls_;
      return text;
    });
  }

  Arguments arguments_of(const Expression& e, const Scope& scope) {
    Arguments a;
    for (std::size_t i = 1; i < e.parts.size(); ++i)
      a.values.push_back(value_of(*e.parts[i], scope));
    for (const auto& [name, part] : e.named) a.named.emplace_back(name, value_of(*part, scope));
    return a;
  }

  Value value_of(const Expression& e, const Scope& scope) {
    step();
    Value value = computed(e, scope);
    if ((value.text() != nullptr && value.text()->size() > kMostBytes) ||
        (value.list() != nullptr && value.list()->size() > kMostItems))
      fail("makes a text or a list without end");
    return value;
  }

  Value computed(const Expression& e, const Scope& scope) {
    const auto part = [&](std::size_t i) { return value_of(*e.parts[i], scope); };
    switch (e.kind) {
      case Kind::literal:
        return e.value;
      case Kind::name: {
        const Value* found = scope.find(e.text);
        return found == nullptr ? Value() : *found;
      }
      case Kind::list: {
        List list;
        for (const auto& one : e.parts) list.push_back(value_of(*one, scope));
        return list;
      }
      case Kind::dictionary: {
        Pairs pairs;
        for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2)
          pairs.emplace_back(part(i).printed(), part(i + 1));
        return pairs;
      }
      case Kind::unary: {
        const Value value = part(0);
        if (e.text == "not") return !value.truthy();
        if (const std::int64_t* i = value.integer()) return e.text == "-" ? -*i : *i;
        return e.text == "-" ? -value.as_real() : value.as_real();
      }
      case Kind::binary:
        return binary(e, scope);
      case Kind::conditional:
        if (part(0).truthy()) return part(1);
        return e.parts[2] == nullptr ? Value() : part(2);
      case Kind::attribute:
        return attribute(part(0), e);
      case Kind::item:
        return item(part(0), part(1));
      case Kind::slice:
        return slice(e, scope);
      case Kind::call: {
        const Value function = part(0);
        if (function.function() == nullptr)
          fail(fmt::format("calls '{}', which is unknown here", e.parts[0]->text));
        return (*function.function())(arguments_of(e, scope));
      }
      case Kind::filter:
        return apply_filter(e.text, part(0), arguments_of(e, scope));
      case Kind::test:
        return apply_test(e.text, part(0), arguments_of(e, scope));
    }
    return {};
  }

  Value binary(const Expression& e, const Scope& scope) {
    const std::string& sign = e.text;
    const Value a = value_of(*e.parts[0], scope);
    if (sign == "and") return a.truthy() ? value_of(*e.parts[1], scope) : a;
    if (sign == "or") return a.truthy() ? a : value_of(*e.parts[1], scope);
    const Value b = value_of(*e.parts[1], scope);
    if (sign == "==") return a == b;
    if (sign == "!=") return !(a == b);
    if (sign == "<") return Value::less(a, b);
    if (sign == ">") return Value::less(b, a);
    if (sign == "<=") return !Value::less(b, a);
    if (sign == ">=") return !Value::less(a, b);
    if (sign == "in") return apply_test("in", a, {{b}, {}});
    if (sign == "not in") return !apply_test("in", a, {{b}, {}});
    if (sign == "~") return a.printed() + b.printed();
    if (sign == "+" && a.text() != nullptr && b.text() != nullptr) return *a.text() + *b.text();
    if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
      List list = *a.list();
      list.insert(list.end(), b.list()->begin(), b.list()->end());
      return list;
    }
    if (sign == "*" && a.text() != nullptr && b.integer() != nullptr) {
      std::string all;
      for (std::int64_t i = 0; i < std::min<std::int64_t>(*b.integer(), 100'000); ++i) {
        all += *a.text();
        step();
      }
      return all;
    }
    if (!a.number() || !b.number())
      fail(fmt::format("computes {} {} {}", a.repr(), sign, b.repr()));
    if (a.real() == nullptr && b.real() == nullptr && sign != "/") {
      const std::int64_t x = a.as_integer("a number"), y = b.as_integer("a number");
      if (sign == "+") return x + y;
      if (sign == "-") return x - y;
      if (sign == "*") return x * y;
      if (y == 0) fail("divides by zero");
      const std::int64_t rest = ((x % y) + y) % y;
      return sign == "%" ? rest : (x - rest) / y;
    }
    const double x = a.as_real(), y = b.as_real();
    if (sign == "+") return x + y;
    if (sign == "-") return x - y;
    if (sign == "*") return x * y;
    if (y == 0) fail("divides by zero");
    if (sign == "/") return x / y;
    return sign == "%" ? x - std::floor(x / y) * y : std::floor(x / y);
  }

  static Value attribute(const Value& of, const Expression& e) {
    if (of.undefined())
      fail(fmt::format("reads '{}' of '{}', which is undefined", e.text, e.parts[0]->text));
    if (Value method = method_of(of, e.text); !method.undefined()) return method;
    const Value* found = of.find(e.text);
    return found == nullptr ? Value() : *found;
  }

  static Value item(const Value& of, const Value& key) {
    if (of.undefined()) fail(fmt::format("reads an item {} of an undefined value", key.repr()));
    if (of.pairs() != nullptr) {
      const Value* found = of.find(key.printed());
      return found == nullptr ? Value() : *found;
    }
    if (key.integer() == nullptr) return {};
    if (const List* list = of.list()) {
      const std::int64_t at = *key.integer() + (*key.integer() < 0 ? std::ssize(*list) : 0);
      return at < 0 || at >= std::ssize(*list) ? Value() : (*list)[static_cast<std::size_t>(at)];
    }
    if (of.text() == nullptr) return {};
    const List characters = items_of(of);
    return item(Value(characters), key);
  }

  Value slice(const Expression& e, const Scope& scope) {
    const Value of = value_of(*e.parts[0], scope);
    if (of.list() == nullptr && of.text() == nullptr)
      fail(fmt::format("takes a slice of {}", of.repr()));
    const List items = items_of(of);
    const auto size = std::ssize(items);
    const auto bound = [&](std::size_t i) -> Value {
      return e.parts[i] == nullptr ? Value(Value::None{}) : value_of(*e.parts[i], scope);
    };
    const Value start = bound(1), stop = bound(2), by = bound(3);
    const std::int64_t step = by.none() ? 1 : by.as_integer("the step of a slice");
    if (step == 0) fail("takes a slice with step 0");
    List taken;
    if (step > 0) {
      const auto from = start.none() ? 0 : inside(start.as_integer("a bound of a slice"), size);
      const auto to = stop.none() ? size : inside(stop.as_integer("a bound of a slice"), size);
      for (auto i = from; i < to; i += step) taken.push_back(items[static_cast<std::size_t>(i)]);
    } else {
      const auto from =
          start.none() ? size - 1
                       : std::min(inside(start.as_integer("a bound of a slice"), size), size - 1);
      const auto to = stop.none() ? -1 : inside(stop.as_integer("a bound of a slice"), size);
      for (auto i = from; i > to; i += step) taken.push_back(items[static_cast<std::size_t>(i)]);
    }
    if (of.list() != nullptr) return taken;
    std::string text;
    for (const Value& one : taken) text += one.printed();
    return text;
  }

  Scope globals_;
  std::string out_;
  std::int64_t steps_ = 0;
  int calls_ = 0;
};

}  // namespace

std::string run(const Program& program, const Pairs& variables) {
  return Evaluator(variables).go(program);
}

}  // namespace choir::jinja
