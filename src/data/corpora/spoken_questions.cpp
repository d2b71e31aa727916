#include "src/data/corpora/spoken_questions.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/corpora/spoken_text.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json text_turn(const char* from, const std::string& value) {
  return {{"from", from}, {"type", "text"}, {"value", value}};
}

std::string conversation_line(const std::string& id, const Json& said, const SpokenTask& task) {
  Json audio;
  audio["from"] = "User";
  audio["type"] = "audio";
  audio["value"] = "../" + said["audio_filepath"].get<std::string>();
  audio["offset"] = said["offset"];
  audio["duration"] = said["duration"];
  Json line;
  line["id"] = id;
  line["conversations"] = {text_turn("User", task.prompt), audio,
                           text_turn("Assistant", task.answer)};
  return dumped(line) + "\n";
}

/// `part_samples`: samples of the file that contains the utterance.
std::string cut_line(const std::string& id, const Json& said, const SpokenTask& task,
                     std::int64_t part_samples) {
  const auto file = said["audio_filepath"].get<std::string>();
  Json recording;
  recording["id"] = fs::path(file).stem().string();
  recording["sources"] = {{{"type", "file"}, {"channels", {0}}, {"source", "../" + file}}};
  recording["sampling_rate"] = kSpokenRate;
  recording["num_samples"] = part_samples;
  recording["duration"] = static_cast<double>(part_samples) / kSpokenRate;
  Json supervision;
  supervision["id"] = id;
  supervision["recording_id"] = recording["id"];
  supervision["start"] = 0.0;
  supervision["duration"] = said["duration"];
  supervision["channel"] = 0;
  supervision["text"] = task.answer;
  supervision["speaker"] = said["speaker"];
  Json cut;
  cut["id"] = id;
  cut["start"] = said["offset"];
  cut["duration"] = said["duration"];
  cut["channel"] = 0;
  cut["supervisions"] = {supervision};
  cut["recording"] = recording;
  cut["custom"] = {{"context", task.prompt}};
  cut["type"] = "MonoCut";
  return dumped(cut) + "\n";
}

}  // namespace

SpokenPlan spoken_plan(std::string_view corpus, int version, const SpokenOptions& options) {
  Json request;
  request["corpus"] = corpus;
  request["version"] = version;
  request["hours"] = options.hours;
  request["seed"] = options.seed;
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  plan.request = dumped(request);
  return plan;
}

SpokenPlan::Line varied_line(PhiloxKey key, std::int64_t i, std::string text, bool held_out) {
  const auto at = static_cast<std::uint64_t>(i);
  const PhiloxBlock voice = philox_at(key, at, 1), manner = philox_at(key, at, 3);
  SpokenPlan::Line line;
  line.spoken.text = std::move(text);
  if (held_out)
    line.split = between(voice[1], 0, 1) == 0 ? CorpusSplit::val : CorpusSplit::val_voices;
  const auto& voices = line.split == CorpusSplit::val_voices ? unseen_voices() : spoken_voices();
  line.spoken.voice =
      voices[static_cast<std::size_t>(between(voice[0], 0, static_cast<int>(voices.size()) - 1))];
  line.spoken.words_per_minute = between(manner[0], 130, 190);
  line.spoken.pitch = between(manner[1], 30, 70);
  line.spoken.snr_db = 15 + 20 * uniform01(manner[2]);
  line.spoken.id = at;
  return line;
}

std::int64_t write_conversations(const std::string& folder, const TasksOf& tasks_of) {
  std::error_code failure;
  fs::create_directories(folder + "/conversations", failure);
  if (failure)
    throw StorageError(
        fmt::format("cannot create '{}/conversations': {}", folder, failure.message()));
  std::int64_t written = 0;
  std::uint64_t number = 0;
  for (const CorpusSplit part : {CorpusSplit::train, CorpusSplit::val, CorpusSplit::val_voices}) {
    const std::string manifest = folder + "/" + name_of(part) + ".json";
    if (!fs::exists(manifest)) continue;
    std::string conversations, cuts;
    for (const std::string& line : split(read_whole_file(manifest, kMostListMiB), '\n')) {
      if (line.empty()) continue;
      const Json said = read_ordered_json_line(line, manifest);
      const auto file = said["audio_filepath"].get<std::string>();
      const std::int64_t samples =
          (static_cast<std::int64_t>(fs::file_size(folder + "/" + file)) - 44) / 2;
      int asked = 0;
      for (const SpokenTask& task : tasks_of(said["text"].get<std::string>(), number)) {
        const std::string id = fmt::format("{}-{:06}-{}", name_of(part), number, asked++);
        conversations += conversation_line(id, said, task);
        cuts += cut_line(id, said, task, samples);
        ++written;
      }
      ++number;
    }
    const std::string stem = folder + "/conversations/" + name_of(part);
    write_whole_file(stem + ".jsonl", conversations);
    write_whole_file(stem + "_cuts.jsonl", cuts);
  }
  return written;
}

std::string text_conversation(const std::string& id, const std::vector<std::string>& asked,
                              const std::string& answer) {
  Json line;
  line["id"] = id;
  for (const std::string& text : asked) line["conversations"].push_back(text_turn("User", text));
  line["conversations"].push_back(text_turn("Assistant", answer));
  return dumped(line) + "\n";
}

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
