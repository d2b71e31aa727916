#include "choir/core/key_table.hpp"

#include <algorithm>
#include "choir/core/json_value.hpp"

#include "choir/core/json.hpp"
#include "choir/core/text.hpp"
#include "choir/core/utf8_text.hpp"
#include "key_value.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr const char* kCommandLine = "command line";

}  // namespace

/// Applies one document or one list of overrides and collects complaints.
class KeySet::Reader {
 public:
  Reader(const KeySet& keys, void* object, KeyOrigins& origins, std::vector<KeyProblem>& problems)
      : keys_(keys), object_(object), origins_(origins), problems_(problems) {}

  void complain(const std::string& key, const std::string& place, const std::string& text) {
    problems_.push_back({{key}, fmt::format("{}: {}", place, text)});
  }

  bool assign(const Key& key, const json& given, const std::string& place, KeySource source) {
    const auto value = convert(key, given);
    if (!value) return complain(key.path, place, wrong_type(key, given)), false;
    const std::string complaint = illegal(key, given, *value);
    if (!complaint.empty()) return complain(key.path, place, complaint), false;
    key.set(key, object_, *value);
    origins_[key.path] = {source, place};
    return true;
  }

  void walk(const json& node, const std::string& prefix, const JsonDocument& document) {
    for (const auto& [name, value] : node.items()) {
      const std::string path = prefix.empty() ? name : prefix + "." + name;
      const std::string place = document.place_of(path);
      if (prefix.empty() && (name == "$schema" || name == "sources" || name == "derived")) continue;
      const Key* key = keys_.find(path);
      if (name.find('.') != std::string::npos) {
        complain(path, place,
                 fmt::format("key '{}' holds a dot; in a file sections are objects: "
                             "\"{}\": {{...}}",
                             path, split(name, '.').front()));
      } else if (key) {
        if (!value.is_null()) assign(*key, value, place, KeySource::file);  // null means not given
      } else if (is_section(path)) {
        if (value.is_object())
          walk(value, path, document);
        else
          complain(
              path, place,
              fmt::format("'{}' is a section: expected an object, not {}", path, kind_of(value)));
      } else {
        complain(path, place, unknown(path));
      }
    }
  }

  /// A resolved document lists which of its values were defaults; they remain defaults while they
  /// are equal.
  void mark_defaults(const JsonDocument& document, const void* defaults) {
    const auto sources = document.root().find("sources");
    if (sources == document.root().end()) return;
    if (!sources->is_object())
      return complain("sources", document.place_of("sources"), "'sources' must be an object");
    for (const auto& [path, source] : sources->items()) {
      const Key* key = keys_.find(path);
      if (!key) {
        complain(path, document.place_of("sources." + path), "sources: " + unknown(path));
      } else if (source == "default" || source == "derived") {
        const KeyValue value = key->get(*key, object_);
        const KeyValue standard = key->get(*key, const_cast<void*>(defaults));
        const bool was = source == "derived" && key->former_default == value;
        if (was) key->set(*key, object_, standard);
        if (was || value == standard) origins_.erase(path);
      }
    }
  }

  void override_one(const std::string& text, std::vector<std::string>& seen) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return complain(text, kCommandLine,
                      fmt::format("'{}' is not of the form key.path=value", text));
    const std::string path(trim(std::string_view(text).substr(0, equals)));
    const std::string raw(trim(std::string_view(text).substr(equals + 1)));
    if (std::find(seen.begin(), seen.end(), path) != seen.end())
      return complain(path, kCommandLine, fmt::format("{} is given twice", path));
    seen.push_back(path);
    if (!is_utf8(raw))
      return complain(path, kCommandLine,
                      fmt::format("{} = {} is not UTF-8, the encoding of all text here: choose "
                                  "another name",
                                  shown_as_text(path), shown_as_text(raw)));
    if (const Key* key = keys_.find(path)) {
      assign(*key, from_command(*key, raw), kCommandLine, KeySource::command);
      return;
    }
    if (override_entry(path, raw)) return;
    complain(path, kCommandLine,
             is_section(path) ? fmt::format("'{}' is a section, not a key", path) : unknown(path));
  }

 private:
  /// The nearest key is searched among all keys; for thousands of errors this would take too long.
  std::string unknown(const std::string& path) const {
    constexpr std::size_t kExplained = 100;
    return problems_.size() < kExplained ? keys_.unknown(path)
                                         : fmt::format("unknown key '{}'", path);
  }
  bool is_section(const std::string& path) const {
    return std::any_of(keys_.keys().begin(), keys_.keys().end(),
                       [&](const Key& key) { return key.path.starts_with(path + "."); });
  }

  /// An override of one entry of a map: data.hints.cb_nodes=4.
  bool override_entry(const std::string& path, const std::string& raw) {
    for (const Key& key : keys_.keys()) {
      const bool maps = key.type == KeyType::text_map || key.type == KeyType::text_or_map;
      if (!maps || !path.starts_with(key.path + ".")) continue;
      const KeyValue held = key.get(key, object_);
      const auto* text = std::get_if<std::string>(&held);
      if (text != nullptr && !text->empty())
        return complain(path, kCommandLine,
                        fmt::format("{} is one text, \"{}\", which has no entries; give it whole",
                                    key.path, *text)),
               true;
      TextMap map = text != nullptr ? TextMap() : std::get<TextMap>(held);
      map[path.substr(key.path.size() + 1)] = raw;
      return assign(key, json(map), kCommandLine, KeySource::command), true;
    }
    return false;
  }

  const KeySet& keys_;
  void* object_;
  KeyOrigins& origins_;
  std::vector<KeyProblem>& problems_;
};

Key& KeySet::append(Key key) {
  CHOIR_CHECK(find(key.path) == nullptr, "key {} stands twice in the table", key.path);
  keys_.push_back(std::move(key));
  return keys_.back();
}

const Key* KeySet::find(const std::string& path) const {
  for (const Key& key : keys_)
    if (key.path == path) return &key;
  return nullptr;
}

void KeySet::adopt(const Key& key, std::size_t owner, const KeyValue& standard,
                   std::function<void*(void*)> part, std::function<std::size_t(void*)> current) {
  Key adopted = key;
  adopted.former_default = standard;
  adopted.get = [key, part](const Key&, void* object) { return key.get(key, part(object)); };
  adopted.set = [key, part](const Key&, void* object, const KeyValue& value) {
    key.set(key, part(object), value);
  };
  const auto found = std::find_if(keys_.begin(), keys_.end(),
                                  [&](const Key& known) { return known.path == key.path; });
  if (found == keys_.end()) {
    keys_.push_back(std::move(adopted));
    return;
  }
  CHOIR_CHECK(found->type == key.type, "two owners have {} as keys of different types", key.path);
  found->get = [first = found->get, own = adopted.get, owner, current](const Key& self,
                                                                       void* object) {
    return current(object) == owner ? own(self, object) : first(self, object);
  };
  found->set = [first = found->set, own = adopted.set](const Key& self, void* object,
                                                       const KeyValue& value) {
    first(self, object, value);
    own(self, object, value);
  };
}

void KeySet::read_values(void* object, const JsonDocument& document, KeyOrigins& origins,
                         std::vector<KeyProblem>& problems) const {
  CHOIR_CHECK(document.root().is_object(), "{} is not an object", document.source());
  Reader(*this, object, origins, problems).walk(document.root(), "", document);
}

void KeySet::mark_defaults(void* object, const void* defaults, const JsonDocument& document,
                           KeyOrigins& origins, std::vector<KeyProblem>& problems) const {
  Reader(*this, object, origins, problems).mark_defaults(document, defaults);
  // Sorted in the order of the file; the library sorts objects by name.
  std::stable_sort(problems.begin(), problems.end(), [&](const auto& a, const auto& b) {
    return document.line_of(a.keys.front()) < document.line_of(b.keys.front());
  });
}

void KeySet::read_overrides(void* object, const std::vector<std::string>& overrides,
                            KeyOrigins& origins, std::vector<KeyProblem>& problems) const {
  Reader reader(*this, object, origins, problems);
  std::vector<std::string> seen;
  for (const std::string& text : overrides) reader.override_one(text, seen);
}

std::string KeySet::advice_for(const std::string& path) const {
  const std::string folded = fold_name(path);
  const std::string last = folded.substr(folded.rfind('.') + 1);
  for (const std::string& wanted : {folded, last})
    for (const ForeignKey& foreign : foreign_) {
      if (fold_name(foreign.name) != wanted) continue;
      if (foreign.advice.find(' ') != std::string::npos)
        return fmt::format("a name of {}: {}", foreign.program, foreign.advice);
      return fmt::format("what {} calls '{}' is '{}' here", foreign.program, foreign.name,
                         foreign.advice);
    }
  return {};
}

std::string KeySet::unknown(const std::string& path) const {
  const std::string head = fmt::format("unknown key '{}'", path);
  std::vector<std::string> paths, lasts;
  for (const Key& key : keys_) paths.push_back(key.path);
  // The right name in the wrong section first, then names of other programs, then misspellings.
  const std::string last = path.substr(path.rfind('.') + 1);
  std::vector<std::string> elsewhere;
  for (const std::string& legal : paths)
    if (legal.substr(legal.rfind('.') + 1) == fold_name(last))
      elsewhere.push_back("'" + legal + "'");
  if (!elsewhere.empty()) return fmt::format("{}; the key is {}", head, join(elsewhere, " or "));
  const std::string advice = advice_for(path);
  if (!advice.empty()) return fmt::format("{}; {}", head, advice);
  if (last == path) {  // perhaps a section
    const std::string section = nearest_name(path, sections());
    if (!section.empty()) return fmt::format("{}; did you mean the section '{}'?", head, section);
  }
  const std::string near = nearest_name(path, paths);
  // Keys of the same section are compared by their last part: "train.stepz" is nearer to "steps"
  // than the whole path suggests.
  for (const std::string& legal : paths) {
    const std::size_t dot = path.rfind('.');
    if (dot != std::string::npos && legal.starts_with(path.substr(0, dot + 1)))
      lasts.push_back(legal.substr(dot + 1));
  }
  const std::string near_last = nearest_name(last, lasts);
  if (!near_last.empty())
    return fmt::format("{}; did you mean '{}'?", head,
                       path.substr(0, path.rfind('.') + 1) + near_last);
  if (!near.empty()) return fmt::format("{}; did you mean '{}'?", head, near);
  if (!lasts.empty()) return fmt::format("{}; keys of this section: {}", head, join(lasts, ", "));
  return fmt::format("{}; sections: {}", head, join(sections(), ", "));
}

void throw_problems(const std::vector<KeyProblem>& problems, const std::string& source) {
  if (problems.empty()) return;
  const std::string hint = "`choir train --describe` lists every key";
  if (problems.size() == 1) throw DeckError(problems.front().text, hint);
  std::string text = fmt::format("{}: {} errors", source, problems.size());
  for (const KeyProblem& problem : problems) text += "\n  " + problem.text;
  throw DeckError(text, hint);
}

}  // namespace choir
