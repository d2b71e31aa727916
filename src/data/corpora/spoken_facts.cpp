#include "choir/data/corpora/spoken_facts.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpora/spoken_text.hpp"
#include "src/data/permutation.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

constexpr int kFactsVersion = 1;
constexpr const char* kPrompt = "Answer:";
constexpr std::array kBooks{"genesis",
                            "exodus",
                            "leviticus",
                            "numbers",
                            "deuteronomy",
                            "joshua",
                            "judges",
                            "ruth",
                            "first samuel",
                            "second samuel",
                            "first kings",
                            "second kings",
                            "first chronicles",
                            "second chronicles",
                            "ezra",
                            "nehemiah",
                            "esther",
                            "job",
                            "psalms",
                            "proverbs",
                            "ecclesiastes",
                            "song of solomon",
                            "isaiah",
                            "jeremiah",
                            "lamentations",
                            "ezekiel",
                            "daniel",
                            "hosea",
                            "joel",
                            "amos",
                            "obadiah",
                            "jonah",
                            "micah",
                            "nahum",
                            "habakkuk",
                            "zephaniah",
                            "haggai",
                            "zechariah",
                            "malachi",
                            "matthew",
                            "mark",
                            "luke",
                            "john",
                            "acts",
                            "romans",
                            "first corinthians",
                            "second corinthians",
                            "galatians",
                            "ephesians",
                            "philippians",
                            "colossians",
                            "first thessalonians",
                            "second thessalonians",
                            "first timothy",
                            "second timothy",
                            "titus",
                            "philemon",
                            "hebrews",
                            "james",
                            "first peter",
                            "second peter",
                            "first john",
                            "second john",
                            "third john",
                            "jude",
                            "revelation"};
static_assert(kBooks.size() == 66);

using Words = std::vector<std::string>;

Words words_of(std::string_view verse) {
  Words words;
  std::string word;
  for (const char c : verse) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::string lower(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

/// The chapters of each book, and the words of each verse.
struct Book {
  std::vector<std::int64_t> chapters;
  std::vector<Words> verses;
};

Book parsed(std::string_view text) {
  Book book;
  std::string last;
  for (const std::string& line : split(std::string(text), '\n')) {
    const std::size_t colon = line.find(':'), blank = line.find(' ');
    if (colon == std::string::npos || blank == std::string::npos || blank < colon) continue;
    std::size_t number = colon;
    while (number > 0 && std::isdigit(static_cast<unsigned char>(line[number - 1])) != 0) --number;
    const std::string name = line.substr(0, number);
    if (name != last) book.chapters.push_back(0);
    last = name;
    book.chapters.back() = std::stoll(line.substr(number, colon - number));
    book.verses.push_back(words_of(std::string_view(line).substr(blank + 1)));
  }
  if (book.chapters.size() != kBooks.size())
    throw DataError(fmt::format("a Bible of {} books, not {}", book.chapters.size(), kBooks.size()),
                    "apt-get install bible-kjv");
  return book;
}

/// Words that never occur in lower case.
class Names {
 public:
  explicit Names(const std::vector<Words>& verses) {
    for (const Words& verse : verses)
      for (const std::string& word : verse)
        if (std::islower(static_cast<unsigned char>(word.front())) != 0) small_.insert(word);
  }
  bool has(const std::string& word) const {
    return std::isupper(static_cast<unsigned char>(word.front())) != 0 && word.size() > 1 &&
           !small_.contains(lower(word));
  }

 private:
  std::set<std::string> small_;
};

/// Parents of each child, in the order of the children.
using Parents = std::map<std::string, std::set<std::string>>;

void add_alone(const Parents& parents, const std::string& question, std::vector<SpokenFact>& to) {
  for (const auto& [child, all] : parents)
    if (all.size() == 1) to.push_back({question + child, *all.begin()});
}

void add_kin(const std::vector<Words>& verses, std::vector<SpokenFact>& facts) {
  const Names names(verses);
  Parents begat, son_of;
  for (const Words& w : verses)
    for (std::size_t i = 0; i + 2 < w.size(); ++i) {
      if (!names.has(w[i])) continue;
      if (w[i + 1] == "begat" && names.has(w[i + 2])) begat[lower(w[i + 2])].insert(lower(w[i]));
      // "Joash king of Israel the son of Jehoahaz" is about Joash.
      const bool of_a_place = i > 0 && w[i - 1] == "of";
      if (i + 4 < w.size() && !of_a_place && w[i + 1] == "the" && w[i + 2] == "son" &&
          w[i + 3] == "of" && names.has(w[i + 4]))
        son_of[lower(w[i])].insert(lower(w[i + 4]));
    }
  add_alone(begat, "who begat ", facts);
  add_alone(son_of, "whose son was ", facts);
}

}  // namespace

std::vector<SpokenFact> spoken_facts(std::string_view verses) {
  const Book book = parsed(verses);
  std::vector<SpokenFact> facts;
  add_kin(book.verses, facts);
  for (std::size_t b = 0; b < kBooks.size(); ++b) {
    const std::string name = kBooks[b];
    if (b > 0) facts.push_back({"which book comes before " + name, kBooks[b - 1]});
    if (b + 1 < kBooks.size()) facts.push_back({"which book comes after " + name, kBooks[b + 1]});
    facts.push_back({"how many chapters has " + name, number_words(book.chapters[b])});
  }
  return facts;
}

SpokenPlan spoken_facts_plan(const std::vector<SpokenFact>& facts, const SpokenOptions& options) {
  const PhiloxKey key = philox_key(options.seed, "spoken facts");
  SpokenPlan plan = spoken_plan("spoken-facts", kFactsVersion, options);
  plan.line = [facts, key, seed = options.seed](std::int64_t i) {
    const std::uint64_t n = facts.size(), at = static_cast<std::uint64_t>(i);
    const std::string& question = facts[Permutation(n, key, at / n)(at % n)].question;
    const PhiloxKey held_out = philox_key(seed, "spoken facts held out " + question);
    return varied_line(key, i, question, between(philox_at(held_out, 0)[0], 0, 4) == 0);
  };
  return plan;
}

std::int64_t write_spoken_facts(const std::string& folder, const std::vector<SpokenFact>& facts) {
  std::map<std::string, std::string> answers;
  std::string text;
  for (const SpokenFact& fact : facts) {
    answers.emplace(fact.question, fact.answer);
    text += text_conversation(fmt::format("fact-{:06}", answers.size() - 1),
                              {kPrompt, fact.question}, fact.answer);
  }
  const std::int64_t written = write_conversations(folder, [&](const std::string& said,
                                                               std::uint64_t) {
    const auto found = answers.find(said);
    if (found == answers.end())
      throw DataError(fmt::format("'{}' asks '{}', to which this book has no answer", folder, said),
                      "the folder was made from another book: choose another folder");
    return std::vector<SpokenTask>{{kPrompt, found->second}};
  });
  write_whole_file(folder + "/conversations/facts.jsonl", text);
  return written + std::ssize(facts);
}

}  // namespace choir
