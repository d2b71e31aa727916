#include "choir/data/corpora/spoken_tasks.hpp"

#include <algorithm>
#include <array>

#include "choir/core/philox.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpora/spoken_text.hpp"
#include "src/data/permutation.hpp"

namespace choir {
namespace {

constexpr int kTasksVersion = 1;
constexpr std::array kWords{
    "apple",  "bird",   "black", "blue",  "boat",  "book",   "bread",  "bridge", "brown", "chair",
    "child",  "cloud",  "cold",  "dog",   "door",  "dream",  "earth",  "fire",   "fish",  "flower",
    "forest", "glass",  "gold",  "grass", "green", "hand",   "heart",  "home",   "horse", "house",
    "king",   "lake",   "leaf",  "light", "lion",  "milk",   "moon",   "music",  "night", "ocean",
    "paper",  "queen",  "rain",  "river", "road",  "school", "shadow", "silver", "snow",  "stone",
    "street", "summer", "sun",   "table", "tiger", "tree",   "water",  "white",  "wind",  "winter"};
static_assert(kWords.size() == 60);

/// -1 for a word that is not a digit.
int digit_of(std::string_view word) {
  for (int digit = 0; digit < 10; ++digit)
    if (number_words(digit) == word) return digit;
  return -1;
}

std::string words_of(PhiloxKey key, std::uint64_t i) {
  const PhiloxBlock shape = philox_at(key, i, 0), drawn = philox_at(key, i, 2);
  const bool digits = between(shape[0], 0, 1) == 0;
  const int length = between(shape[1], 1, digits ? 4 : 3);
  std::vector<std::string> words;
  for (std::size_t w = 0; w < static_cast<std::size_t>(length); ++w)
    words.push_back(digits ? number_words(between(drawn[w], 0, 9))
                           : kWords[static_cast<std::size_t>(
                                 between(drawn[w], 0, static_cast<int>(kWords.size()) - 1))]);
  return join(words, " ");
}

}  // namespace

std::span<const char* const> common_words() {
  return kWords;
}

std::vector<SpokenTask> spoken_tasks_of(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  if (words.empty()) return {};
  std::vector<std::string> letters;
  for (const char c : words.front()) letters.push_back(std::string(1, c));
  std::vector<SpokenTask> tasks{{"Repeat:", std::string(text)},
                                {"Reverse the words:", join({words.rbegin(), words.rend()}, " ")},
                                {"Say the last word:", words.back()},
                                {"How many words?", number_words(std::ssize(words))},
                                {"Spell the first word:", join(letters, " ")}};
  int sum = 0;
  for (const std::string& word : words) {
    const int digit = digit_of(word);
    if (digit < 0) return tasks;
    sum += digit;
  }
  tasks.push_back({"Add the numbers:", number_words(sum)});
  return tasks;
}

SpokenPlan spoken_tasks_plan(const SpokenOptions& options) {
  const PhiloxKey key = philox_key(options.seed, "spoken tasks");
  SpokenPlan plan = spoken_plan("spoken-tasks", kTasksVersion, options);
  plan.line = [key, seed = options.seed](std::int64_t i) {
    std::string text = words_of(key, static_cast<std::uint64_t>(i));
    // Depends on the words alone, so that equal texts are all held out or none is.
    const PhiloxKey held_out = philox_key(seed, "spoken tasks held out " + text);
    return varied_line(key, i, std::move(text), between(philox_at(held_out, 0)[0], 0, 9) == 0);
  };
  return plan;
}

std::int64_t write_spoken_tasks(const std::string& folder, std::uint64_t seed, int prompts) {
  const PhiloxKey key = philox_key(seed, "spoken tasks asked");
  return write_conversations(folder, [&](const std::string& said, std::uint64_t number) {
    const auto tasks = spoken_tasks_of(said);
    const Permutation order(tasks.size(), key, number);
    std::vector<SpokenTask> asked;
    for (std::size_t p = 0; p < std::min(tasks.size(), static_cast<std::size_t>(prompts)); ++p)
      asked.push_back(tasks[order(p)]);
    return asked;
  });
}

}  // namespace choir
