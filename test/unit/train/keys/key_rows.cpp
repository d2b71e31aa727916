#include "test/unit/train/keys/key_rows.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir::test {
namespace {

constexpr const char* kTable = "test/unit/train/keys/key_effects.txt";

class TableReader {
 public:
  void take(const std::string& text, int line) {
    line_ = line;
    const bool indented = text.front() == ' ';
    const std::string content(trim(text));
    if (content.empty() || content.front() == '#') return;
    if (!indented)
      take_head(words_of(content));
    else if (in_tests_)
      take_test(content);
    else if (in_unseen_)
      table.unseen.push_back(content);
    else
      take_row(words_of(content));
  }
  KeyEffects table;

 private:
  static std::vector<std::string> words_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }
  void require(bool fine, const char* expected) const {
    if (!fine)
      throw Error(ExitCode::other, fmt::format("{}:{}: expected {}", kTable, line_, expected));
  }

  /// "deck NAME PATH [OVERRIDE ...]", "tests", "unseen REASON" or "OBSERVABLE BASE[:PART] ..."
  void take_head(const std::vector<std::string>& words) {
    in_tests_ = words.front() == "tests";
    in_unseen_ = words.front() == "unseen";
    if (in_tests_ || in_unseen_) return;
    require(words.size() > 1, "deck NAME PATH, tests, or an observable and its bases");
    if (words.front() == "deck") {
      require(words.size() > 2, "deck NAME PATH OVERRIDE ...");
      const KeyBase* like = find(words[2]);  // a deck by its name, with more overrides
      KeyBase& base = bases_[words[1]];
      base.name = words[1];
      base.path = like != nullptr ? like->path : words[2];
      base.overrides = merged(like != nullptr ? like->overrides : std::vector<std::string>{},
                              {words.begin() + 3, words.end()});
      return;
    }
    KeySection section{.observable = words.front(), .bases = {}, .rows = {}};
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::vector<std::string> parts = split(words[i], ':');
      const KeyBase* base = find(parts[0]);
      require(base != nullptr, "the name of a deck");
      section.bases.push_back(*base);
      if (parts.size() > 1) section.bases.back().part = parts[1] + ".";
    }
    table.sections.push_back(std::move(section));
  }

  /// "KEY = VALUE [with OVERRIDE ...] [alone REASON]"
  void take_row(const std::vector<std::string>& words) {
    require(!table.sections.empty() && words.size() > 2 && words[1] == "=", "KEY = VALUE");
    KeyRow row{.line = line_, .key = words[0], .value = words[2], .with = {}, .excuse = {}};
    std::size_t i = 3;
    if (i < words.size() && words[i] == "with")
      for (++i; i < words.size() && words[i] != "alone"; ++i) row.with.push_back(words[i]);
    require(i == words.size() || words[i] == "alone", "with or alone");
    if (i < words.size())
      row.excuse = join({words.begin() + static_cast<int>(i) + 1, words.end()}, " ");
    table.sections.back().rows.push_back(std::move(row));
  }

  /// "[FAMILY:]KEY FILE NAME"
  void take_test(const std::string& text) {
    const std::vector<std::string> words = words_of(text);
    require(words.size() > 2, "KEY FILE NAME");
    NamedTest test{.line = line_, .family = {}, .key = words[0], .file = words[1], .name = {}};
    test.name = trim(text.substr(text.find(words[1]) + words[1].size()));
    if (const std::size_t colon = test.key.find(':'); colon != std::string::npos) {
      test.family = test.key.substr(0, colon);
      test.key = test.key.substr(colon + 1);
    }
    table.named.push_back(std::move(test));
  }

  const KeyBase* find(const std::string& name) const {
    const auto found = bases_.find(name);
    return found == bases_.end() ? nullptr : &found->second;
  }

  std::map<std::string, KeyBase> bases_;
  bool in_tests_ = false, in_unseen_ = false;
  int line_ = 0;
};

std::string key_of(const std::string& word) {
  return word.substr(0, word.find('='));
}

/// The lines of the test of that name, to the end of its body; empty if there is none.
std::string body_of(const std::vector<std::string>& lines, const std::string& name) {
  const std::vector<std::string> parts = split(name, '.');
  const std::string head = "(" + join(parts, ", ") + ")";
  std::string body;
  for (const std::string& line : lines) {
    if (body.empty() && !(line.starts_with("TEST") && line.find(head) != std::string::npos))
      continue;
    body += line + "\n";
    if (line == "}") break;
  }
  return body;
}

/// Every check of that name, each with the lines around it that belong to it.
std::vector<std::string> checks_of(const std::vector<std::string>& lines, const std::string& name) {
  constexpr std::size_t kBefore = 12, kBehind = 2;
  std::vector<std::string> checks;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find(name) == std::string::npos) continue;
    const std::size_t first = i - std::min(i, kBefore);
    const std::size_t end = std::min(i + kBehind + 1, lines.size());
    checks.push_back(join({lines.begin() + static_cast<std::ptrdiff_t>(first),
                           lines.begin() + static_cast<std::ptrdiff_t>(end)},
                          "\n"));
  }
  return checks;
}

}  // namespace

std::vector<std::string> KeyBase::written(const std::vector<std::string>& words) const {
  std::vector<std::string> result;
  for (const std::string& word : words)
    result.push_back(word.starts_with("model.") ? part + word.substr(6) : word);
  return result;
}

KeyEffects KeyEffects::parse(const std::string& text) {
  TableReader reader;
  int line = 0;
  for (const std::string& content : split(text, '\n'))
    if (++line; !content.empty()) reader.take(content, line);
  return std::move(reader.table);
}

KeyEffects KeyEffects::read() {
  return parse(read_bytes(kTable));
}

std::vector<std::string> merged(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  for (const std::string& word : more) {
    std::erase_if(words, [&](const std::string& old) { return key_of(old) == key_of(word); });
    words.push_back(word);
  }
  return words;
}

std::string fault_of(const NamedTest& test) {
  if (!std::filesystem::exists(test.file)) return "there is no " + test.file;
  const std::vector<std::string> lines = split(read_bytes(test.file), '\n');
  const bool script = test.file.ends_with(".sh");
  const auto texts =
      script ? checks_of(lines, test.name) : std::vector<std::string>{body_of(lines, test.name)};
  const std::string word = script ? test.key : test.key.substr(test.key.rfind('.') + 1);
  for (const std::string& text : texts)
    if (text.find(word) != std::string::npos) return {};
  return fmt::format("{} has no test '{}' with {}", test.file, test.name, word);
}

}  // namespace choir::test
