// drawn_decks legal|broken COUNT SEED [FIRST] [FOLDER]: random decks for test/run/drawn_decks.sh.
//
// legal   prints the arguments of `choir` for each deck, after its number and its ranks, and the
//         drawn values on stderr. Exit code 1 if draws are refused too often; with --complete as
//         last argument also if a named value was never drawn.
// broken  checks that each deck is refused as it must be, and prints the others. With a FOLDER it
//         writes decks there, and beside each the words that a message about it must contain.
// FIRST is the number of the first deck (0): its number and COUNT 1 reproduce a single deck.
#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "src/core/text.hpp"
#include "test/drawn_decks/broken_decks.hpp"
#include "test/drawn_decks/legal_decks.hpp"

namespace choir::test {
namespace {

int legal(std::size_t first, std::size_t count, std::uint64_t seed, bool complete) {
  Coverage coverage;
  for (std::size_t i = first; i < first + count; ++i) {
    const LegalDeck deck = draw_legal_deck(seed, i, coverage);
    fmt::print("{} {} {}\n", i, deck.ranks, deck.command());
  }
  const double refused = static_cast<double>(coverage.refused) /
                         static_cast<double>(coverage.refused + coverage.accepted);
  fmt::print(stderr, "{}{} draws: {:.0f} % refused\n", coverage.to_string(),
             coverage.refused + coverage.accepted, 100 * refused);
  // If most draws were refused, the decks would only be the rest.
  if (refused > 0.5) {
    fmt::print(stderr, "more than half of the draws were refused\n");
    return 1;
  }
  const std::vector<std::string> missing =
      complete ? coverage.missing() : std::vector<std::string>{};
  for (const std::string& each : missing) fmt::print(stderr, "never drawn: {}\n", each);
  return missing.empty() ? 0 : 1;
}

int broken(std::size_t first, std::size_t count, std::uint64_t seed, const std::string& folder) {
  std::map<std::string, int> kinds;
  int findings = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const BrokenDeck deck = draw_broken_deck(seed, i);
    ++kinds[deck.kind];
    if (const std::string found = finding(deck); !found.empty()) {
      ++findings;
      fmt::print("deck {} of seed {}, {} of {}: {}\n", i, seed, deck.kind, deck.named, found);
    }
    if (folder.empty()) continue;
    const std::string path = fmt::format("{}/{}", folder, i);
    std::ofstream(path + ".json") << deck.text;
    std::ofstream(path + ".name") << deck.named << "\n";
    std::ofstream(path + ".overrides")
        << join(deck.overrides, "\n") << (deck.overrides.empty() ? "" : "\n");
  }
  for (const auto& [kind, number] : kinds) fmt::print(stderr, "  {}: {}\n", kind, number);
  fmt::print("{} decks, {} findings\n", count, findings);
  return findings == 0 ? 0 : 1;
}

int run(std::vector<std::string> words) {
  const bool complete = !words.empty() && words.back() == "--complete";
  if (complete) words.pop_back();
  if (words.size() < 3 || words.size() > 5 || (words[0] != "legal" && words[0] != "broken")) {
    fmt::print(stderr, "usage: drawn_decks legal|broken COUNT SEED [FIRST] [FOLDER]\n");
    return 2;
  }
  words.resize(5);
  const std::size_t count = std::stoul(words[1]),
                    first = words[3].empty() ? 0 : std::stoul(words[3]);
  const std::uint64_t seed = std::stoull(words[2]);
  return words[0] == "legal" ? legal(first, count, seed, complete)
                             : broken(first, count, seed, words[4]);
}

}  // namespace
}  // namespace choir::test

int main(int argc, char** argv) {
  try {
    return choir::test::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "drawn_decks: {}\n", choir::describe(error));
    return 1;
  }
}
