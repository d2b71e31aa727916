#pragma once
// Typed keys bound to the members of a struct. One table defines all legal keys: it reads documents
// and `key.path=value` overrides, refuses unknown, mistyped or out-of-range values, and prints
// itself as a help text, a JSON schema and a resolved document. Local, no MPI.
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "choir/core/enum_words.hpp"
#include "choir/core/error.hpp"

namespace choir {

class JsonDocument;

enum class KeyType {
  boolean,
  integer,
  real,
  text,
  choice,
  text_list,
  text_map,
  text_or_map,
  duration
};

using TextMap = std::map<std::string, std::string>;
/// One text for all names, or one text for each name.
using TextOrMap = std::variant<std::string, TextMap>;
/// The value of a key. Durations are seconds (double), choices are text.
using KeyValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>, TextMap>;

/// The origin of a value, printed as "default", "file", "override", "derived".
enum class KeySource { builtin, file, command, derived };
std::string_view name_of(KeySource source);

struct KeyOrigin {
  KeySource source = KeySource::builtin;
  std::string place;  ///< "inputs/a.json:12", "command line", or ""
};
using KeyOrigins = std::map<std::string, KeyOrigin>;

/// A key whose value differs between two objects, with both values as JSON.
struct KeyChange {
  std::string key, before, now;
};

/// Rule for a value that differs from the one with which the work began: it may change; it may
/// change if it names the same contents under another path; or it must not change, because earlier
/// results depend on it.
enum class OnResume { free, same_contents, fixed };

/// A complaint and the keys that it concerns; `text` begins with the place.
struct KeyProblem {
  std::vector<std::string> keys;
  std::string text;
};

/// A condition on the value of another key.
struct KeyCondition {
  std::string key;                  ///< a path, or a name without dots: a key of the same section
  std::vector<std::string> values;  ///< as in an override
  bool among = true;                ///< the value must be one of `values`; false: none of them
};

struct Key {
  std::string path, unit, about;
  KeyType type = KeyType::text;
  std::optional<double> low, high;
  bool low_open = false, high_open = false;
  std::vector<std::string> choices;      ///< legal values
  std::vector<std::string> later;        ///< refused as not yet supported
  std::string word;                      ///< for integer keys: a word that means ...
  std::int64_t word_value = 0;           ///< ... this number, which may lie outside the legal range
  std::optional<OnResume> on_resume;     ///< if not set, the owner of the table decides
  std::vector<KeyCondition> conditions;  ///< the key has an effect only if all of them hold
  bool holds_json = false;  ///< entries of a map may be objects and lists, which are kept as JSON
  /// Checks beyond the ranges above: returns what a legal value looks like, or "" for a legal one.
  std::function<std::string(const KeyValue&)> check;
  std::string check_text;

  std::function<KeyValue(const Key&, void*)> get;
  std::function<void(const Key&, void*, const KeyValue&)> set;
  /// Value in documents of former revisions in which the key is derived; see KeySet::adopt.
  std::optional<KeyValue> former_default;

  // Setters that are chained where the table is written.
  Key& at_least(double least) { return low = least, *this; }
  Key& above(double bound) { return low = bound, low_open = true, *this; }
  Key& at_most(double most) { return high = most, *this; }
  Key& below(double bound) { return high = bound, high_open = true, *this; }
  /// Legal values of a text member; those of an enumeration are its words. If "true" and "false"
  /// are among the legal values, JSON's booleans are accepted for them.
  Key& one_of(std::vector<std::string> names, std::vector<std::string> not_yet = {});
  /// Words of an enumeration (choir/core/enum_words.hpp) that are not yet supported.
  Key& not_yet(std::vector<std::string> names) { return later = std::move(names), *this; }
  /// Only this value is supported now, although the type allows others.
  Key& only(std::int64_t value);
  Key& or_word(std::string stands, std::int64_t value = 0) {
    return word = std::move(stands), word_value = value, *this;
  }
  Key& when_resumed(OnResume rule) { return on_resume = rule, *this; }
  /// For maps: an entry may also be an object or a list; its value is then the text of its JSON.
  Key& or_json() { return holds_json = true, *this; }
  Key& in_seconds() { return type = KeyType::duration, *this; }
  Key& checked(std::string text, std::function<std::string(const KeyValue&)> test);

  /// The key has an effect only if another key has one of these values: see KeyTable::idle().
  Key& only_with(std::string other, std::vector<std::string> values) {
    return conditions.push_back({std::move(other), std::move(values), true}), *this;
  }
  /// The key has no effect if another key has one of these values.
  Key& not_with(std::string other, std::vector<std::string> values) {
    return conditions.push_back({std::move(other), std::move(values), false}), *this;
  }

  /// "only with optimizer.schedule = cosine | linear", "" without conditions.
  std::string condition_text() const;
  /// "0 <= value < 1", "fp64 | fp32", "" for no constraint.
  std::string constraint() const;
  /// "integer", "integer or \"auto\"", "seconds or \"HH:MM:SS\"" ...
  std::string type_name() const;
};

/// A name that another program uses, with the key or the advice for it.
struct ForeignKey {
  std::string name;     ///< last component or whole path; '-' and '_' are equivalent
  std::string advice;   ///< "train.max_steps", or a sentence (recognised by a blank)
  std::string program;  ///< "nanoGPT", "Megatron" ...
};

/// The type-erased half; use KeyTable<T>.
class KeySet {
 public:
  const std::vector<Key>& keys() const { return keys_; }
  const Key* find(const std::string& path) const;
  /// First components of all paths that have several, in the order of the table.
  std::vector<std::string> sections() const;
  void foreign(std::vector<ForeignKey> names) { foreign_ = std::move(names); }

  /// Adds a key of another table. `part` finds the object of that table in an object of this one.
  /// Several owners may adopt the same path: they share one key, setting it sets the value of all
  /// of them, and getting it returns the value of the owner that `current` names, or else that of
  /// the first. `standard` is the owner's default; the default of the first owner also applies to
  /// documents of former revisions.
  void adopt(const Key& key, std::size_t owner, const KeyValue& standard,
             std::function<void*(void*)> part, std::function<std::size_t(void*)> current);

 protected:
  Key& append(Key key);
  void read_values(void* object, const JsonDocument& document, KeyOrigins& origins,
                   std::vector<KeyProblem>& problems) const;
  void mark_defaults(void* object, const void* defaults, const JsonDocument& document,
                     KeyOrigins& origins, std::vector<KeyProblem>& problems) const;
  void read_overrides(void* object, const std::vector<std::string>& overrides, KeyOrigins& origins,
                      std::vector<KeyProblem>& problems) const;
  std::string describe_table(const void* defaults) const;
  std::string schema_text(const void* defaults, const std::string& title) const;
  std::string resolved_text(const void* object, const void* defaults,
                            const KeyOrigins& origins) const;
  std::string listing_text(const void* object, const KeyOrigins& origins,
                           const std::function<bool(const Key&)>& concerns) const;
  std::vector<KeyProblem> idle_keys(const void* object, const void* defaults,
                                    const KeyOrigins& origins) const;
  std::vector<KeyChange> changes_since(const std::string& resolved, const void* object,
                                       const void* defaults, const KeyOrigins& origins) const;

 private:
  class Reader;
  std::string unknown(const std::string& path) const;
  std::string advice_for(const std::string& path) const;
  nlohmann::json value_json(const Key& key, const void* object) const;
  nlohmann::json leaf_schema(const Key& key, const void* defaults) const;

  std::vector<Key> keys_;
  std::vector<ForeignKey> foreign_;
};

template <class Member>
Key make_key(std::string path, std::string unit, std::string about) {
  Key key;
  key.path = std::move(path), key.unit = std::move(unit), key.about = std::move(about);
  if constexpr (std::is_same_v<Member, bool>)
    key.type = KeyType::boolean;
  else if constexpr (HasWords<Member>)
    key.type = KeyType::choice, key.choices = all_words<Member>();
  else if constexpr (std::integral<Member>)
    key.type = KeyType::integer;
  else if constexpr (std::floating_point<Member>)
    key.type = KeyType::real;
  else if constexpr (std::is_same_v<Member, std::string>)
    key.type = KeyType::text;
  else if constexpr (std::is_same_v<Member, std::vector<std::string>>)
    key.type = KeyType::text_list;
  else if constexpr (std::is_same_v<Member, TextMap>)
    key.type = KeyType::text_map;
  else if constexpr (std::is_same_v<Member, TextOrMap>)
    key.type = KeyType::text_or_map;
  else
    static_assert(!sizeof(Member), "no key type for this member");
  if constexpr (std::integral<Member> && !std::is_same_v<Member, bool>) {
    if (sizeof(Member) < 8) key.high = static_cast<double>(std::numeric_limits<Member>::max());
  }
  return key;
}

/// Keys of T. The defaults are those of a default-constructed T and are not repeated in the table.
template <class T>
class KeyTable : public KeySet {
 public:
  /// Binds the keys of one section; `part` finds the section's struct in T.
  template <class Part>
  class Section {
   public:
    Section(KeyTable& table, std::string name, std::function<Part&(T&)> part)
        : table_(&table), name_(std::move(name)), part_(std::move(part)) {}

    template <class Member>
    Key& add(const std::string& name, Member Part::*member, std::string unit, std::string about) {
      Key key = make_key<Member>(name_.empty() ? name : name_ + "." + name, std::move(unit),
                                 std::move(about));
      auto at = [part = part_, member](void* object) -> Member& {
        return part(*static_cast<T*>(object)).*member;
      };
      key.get = [at](const Key&, void* object) { return to_value(at(object)); };
      key.set = [at](const Key&, void* object, const KeyValue& value) {
        from_value(value, at(object));
      };
      return table_->append(std::move(key));
    }

   private:
    KeyTable* table_;
    std::string name_;
    std::function<Part&(T&)> part_;
  };

  template <class Part>
  Section<Part> section(std::string name, Part T::*part) {
    return {*this, std::move(name), [part](T& object) -> Part& { return object.*part; }};
  }
  template <class Part>
  Section<Part> section(std::string name, std::function<Part&(T&)> part) {
    return {*this, std::move(name), std::move(part)};
  }
  /// Keys without a section.
  Section<T> top() {
    return {*this, "", [](T& object) -> T& { return object; }};
  }

  /// Includes all keys of `part`'s table in a section of this one.
  template <class Part>
  void include(const KeyTable<Part>& keys, const std::string& section,
               std::function<Part&(T&)> part) {
    for (Key key : keys.keys()) {
      const auto inside = [part](void* object) { return &part(*static_cast<T*>(object)); };
      key.path = section + "." + key.path;
      key.get = [get = key.get, inside](const Key& self, void* object) {
        return get(self, inside(object));
      };
      key.set = [set = key.set, inside](const Key& self, void* object, const KeyValue& value) {
        set(self, inside(object), value);
      };
      append(std::move(key));
    }
  }

  /// Appends complaints and never throws; legal values are set. `defaults_of` makes the defaults
  /// for an object that was just read.
  template <class DefaultsOf>
  void read(T& object, const JsonDocument& document, const DefaultsOf& defaults_of,
            KeyOrigins& origins, std::vector<KeyProblem>& problems) const {
    read_values(&object, document, origins, problems);
    const T defaults = defaults_of(object);
    mark_defaults(&object, &defaults, document, origins, problems);
  }
  void read(T& object, const JsonDocument& document, KeyOrigins& origins,
            std::vector<KeyProblem>& problems) const {
    read(
        object, document, [](const T&) { return T(); }, origins, problems);
  }
  void override_with(T& object, const std::vector<std::string>& overrides, KeyOrigins& origins,
                     std::vector<KeyProblem>& problems) const {
    read_overrides(&object, overrides, origins, problems);
  }
  /// Every key with its type, default, unit, constraint and help.
  std::string describe(const T& defaults = T()) const { return describe_table(&defaults); }
  /// JSON schema, draft 2020-12.
  std::string schema(const std::string& title, const T& defaults = T()) const {
    return schema_text(&defaults, title);
  }
  /// A document that reads back to the same object, plus "sources" (the origin of each value) and
  /// "derived" (computed values; their keys hold the default).
  std::string resolved(const T& object, const KeyOrigins& origins) const {
    return resolved(object, T(), origins);
  }
  std::string resolved(const T& object, const T& defaults, const KeyOrigins& origins) const {
    return resolved_text(&object, &defaults, origins);
  }
  /// Text for people: one line for each given or derived value, then a paragraph with the defaults
  /// of the other keys that concern this object.
  std::string listing(const T& object, const KeyOrigins& origins,
                      const std::function<bool(const Key&)>& concerns) const {
    return listing_text(&object, origins, concerns);
  }
  /// The keys that were given, differ from their defaults and have no effect, because another key
  /// does not have the value that Key::only_with or Key::not_with states. The first key of each
  /// problem is the one without effect; the texts lack the place.
  std::vector<KeyProblem> idle(const T& object, const T& defaults,
                               const KeyOrigins& origins) const {
    return idle_keys(&object, &defaults, origins);
  }
  /// The keys in which `object` differs from a document written by resolved(), computed values
  /// included. A key that the document lacks counts as a default there and is compared only if it
  /// was given now; keys that are no longer in the table are ignored.
  std::vector<KeyChange> changes(const std::string& resolved, const T& object, const T& defaults,
                                 const KeyOrigins& origins) const {
    return changes_since(resolved, &object, &defaults, origins);
  }

 private:
  template <class Member>
  static KeyValue to_value(const Member& member) {
    if constexpr (std::is_enum_v<Member>)
      return std::string(choir::name_of<Member>(member));
    else if constexpr (std::is_same_v<Member, bool>)
      return member;
    else if constexpr (std::integral<Member>)
      return static_cast<std::int64_t>(member);
    else if constexpr (std::floating_point<Member>)
      return static_cast<double>(member);
    else if constexpr (std::is_same_v<Member, TextOrMap>)
      return std::visit([](const auto& held) { return KeyValue(held); }, member);
    else
      return member;
  }
  template <class Member>
  static void from_value(const KeyValue& value, Member& member) {
    if constexpr (std::is_enum_v<Member>) {
      if (const auto named = value_named<Member>(std::get<std::string>(value))) member = *named;
    } else if constexpr (std::is_same_v<Member, bool>) {
      member = std::get<bool>(value);
    } else if constexpr (std::integral<Member>) {
      member = static_cast<Member>(std::get<std::int64_t>(value));
    } else if constexpr (std::floating_point<Member>) {
      member = static_cast<Member>(std::get<double>(value));
    } else if constexpr (std::is_same_v<Member, TextOrMap>) {
      if (const auto* map = std::get_if<TextMap>(&value))
        member = *map;
      else
        member = std::get<std::string>(value);
    } else {
      member = std::get<Member>(value);
    }
  }
};

/// The object to which the keys of one owner (a model family, an update rule) are bound. Only the
/// owner knows its type.
class HeldSettings {
 public:
  virtual ~HeldSettings() = default;
  virtual std::unique_ptr<HeldSettings> clone() const = 0;
  virtual void* object() = 0;
};

template <class Settings>
class SettingsOf final : public HeldSettings {
 public:
  std::unique_ptr<HeldSettings> clone() const override {
    return std::make_unique<SettingsOf>(*this);
  }
  void* object() override { return &value; }
  Settings value;
};

/// The settings of several owners in a fixed order. Copies are deep.
class SettingsList {
 public:
  SettingsList() = default;
  SettingsList(const SettingsList& other) {
    for (const auto& one : other.held_) add(one->clone());
  }
  SettingsList& operator=(const SettingsList& other) { return *this = SettingsList(other); }
  SettingsList(SettingsList&&) = default;
  SettingsList& operator=(SettingsList&&) = default;
  ~SettingsList() = default;

  void add(std::unique_ptr<HeldSettings> settings) { held_.push_back(std::move(settings)); }
  HeldSettings& operator[](std::size_t owner) { return *held_[owner]; }
  const HeldSettings& operator[](std::size_t owner) const { return *held_[owner]; }
  /// The settings of this type; nullptr if no owner has them.
  template <class Settings>
  const Settings* find() const {
    for (const auto& one : held_)
      if (const auto* found = dynamic_cast<const SettingsOf<Settings>*>(one.get()))
        return &found->value;
    return nullptr;
  }

 private:
  std::vector<std::unique_ptr<HeldSettings>> held_;
};

/// Throws one DeckError that lists all problems, if there are any.
void throw_problems(const std::vector<KeyProblem>& problems, const std::string& source);

/// format_hms: 3600 -> "01:00:00". parse_hms: seconds of "HH:MM:SS", "MM:SS" or a number of
/// seconds; nullopt for other text.
std::string format_hms(double seconds);
std::optional<double> parse_hms(std::string_view text);

}  // namespace choir
