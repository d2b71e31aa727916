#pragma once
// The words of an enumeration: its values as a user writes them in a deck. They are declared once,
// beside the enumeration, and a key of that type (choir/core/key_table.hpp) takes its legal values,
// its help and its printed value from there:
//
//   enum class Preload { none, host };
//   constexpr auto words_of(Preload) {
//     return words<Preload>({{Preload::none, "none"}, {Preload::host, "host"}});
//   }
//
// The order is that of the help. An enumerator without a word cannot be written in a deck.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace choir {

template <class E>
struct EnumWord {
  E value;
  std::string_view word;
};

template <class E, std::size_t N>
constexpr std::array<EnumWord<E>, N> words(EnumWord<E> (&&list)[N]) {
  return std::to_array(std::move(list));
}

/// Enumerations for which words_of() is declared in their namespace.
template <class E>
concept HasWords = std::is_enum_v<E> && requires(E value) {
  words_of(value);
};

/// The word of a value; "?" for an enumerator without one.
template <HasWords E>
constexpr std::string_view name_of(E value) {
  for (const EnumWord<E>& each : words_of(value))
    if (each.value == value) return each.word;
  return "?";
}

/// The value with this word; nullopt for another text.
template <HasWords E>
constexpr std::optional<E> value_named(std::string_view word) {
  for (const EnumWord<E>& each : words_of(E{}))
    if (each.word == word) return each.value;
  return std::nullopt;
}

/// All words in the order of their declaration.
template <HasWords E>
std::vector<std::string> all_words() {
  std::vector<std::string> names;
  for (const EnumWord<E>& each : words_of(E{})) names.emplace_back(each.word);
  return names;
}

}  // namespace choir
