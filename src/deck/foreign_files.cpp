// Advice about names of other trainers, and the refusal of their configuration files.

#include "src/deck/foreign_names.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/core/file_kind.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"

namespace choir {
namespace {

constexpr std::size_t kMostSettings = 64;  // shown per file
constexpr std::size_t kLongestWord = 32;   // characters of a value that are shown

struct Language {
  const char* ending;
  const char* name;
};
constexpr std::array<Language, 7> kLanguages{{{".py", "Python"},
                                              {".yaml", "YAML"},
                                              {".yml", "YAML"},
                                              {".toml", "TOML"},
                                              {".ini", "an INI file"},
                                              {".sh", "a shell script"},
                                              {".cfg", "a configuration of another program"}}};

struct Setting {
  std::string_view name, value;
};

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// Parses the setting in a line: "batch_size = 12  # of sequences", "max_steps: 3", "--num-layers
/// 24 \". Empty if the line has no name or no value.
Setting setting_of(std::string_view line) {
  line = trim(line);
  if (line.starts_with('#')) return {};
  const bool option = line.starts_with("--");
  line.remove_prefix(std::min(line.find_first_not_of("- "), line.size()));
  const auto end =
      static_cast<std::size_t>(std::ranges::find_if_not(line, is_of_name) - line.begin());
  const std::string_view name = line.substr(0, end);
  line = trim(line.substr(end));
  if (line.starts_with('=') || line.starts_with(':'))
    line.remove_prefix(1);
  else if (!option)
    return {};
  line = trim(line.substr(0, std::min(line.find(" #"), line.find(" \\"))));
  while (line.ends_with(',') || line.ends_with('\\')) line = trim(line.substr(0, line.size() - 1));
  if (line.size() >= 2 && (line.front() == '"' || line.front() == '\'') &&
      line.back() == line.front())
    line = line.substr(1, line.size() - 2);
  if (line.empty() || line.starts_with('{') || line.starts_with('(')) return {};
  return {name, line};
}

/// The path of a setting in a YAML file, whose sections are indented: "model.optim.lr".
class YamlPath {
 public:
  /// The path of the setting `name` in this line; "" if the line opens a section or has no setting.
  std::string of(std::string_view line, std::string_view name) {
    std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view rest = trim(line);
    if (rest.empty() || rest.starts_with('#')) return {};
    if (rest.starts_with("- ")) indent += 2;  // the first setting of an item of a list
    while (!sections_.empty() && sections_.back().first >= indent) sections_.pop_back();
    if (name.empty()) {
      const std::string_view title = rest.substr(0, rest.find(':'));
      if (std::ranges::all_of(title, is_of_name)) sections_.emplace_back(indent, title);
      return {};
    }
    std::string path;
    for (const auto& [at, section] : sections_) path += section + ".";
    return path + std::string(name);
  }

 private:
  std::vector<std::pair<std::size_t, std::string>> sections_;  // indentation and name
};

/// The lines of a text, of which each has one option: "--lr 1e-4 --seed 1" are two.
std::vector<std::string> one_option_a_line(std::string_view text) {
  std::vector<std::string> lines;
  for (const std::string& whole : split(text, '\n')) {
    std::string_view rest = whole;
    const bool options = trim(rest).starts_with("--");
    for (std::size_t next = 0; options && (next = rest.find(" --", 1)) != rest.npos;) {
      lines.emplace_back(rest.substr(0, next));
      rest = rest.substr(next + 1);
    }
    lines.emplace_back(rest);
  }
  return lines;
}

/// True for values that set nothing by themselves.
bool is_reference(std::string_view value) {
  return value == "null" || value == "~" || value == "???" || value.find("${") != value.npos;
}

/// One line "     batch_size = 12            train.micro_batch_size=12" for each known setting of
/// the text, and a line with the names of all that are not needed.
std::string translation(const KeySet& keys, std::string_view text, bool yaml) {
  constexpr std::string_view kUnneeded = "not needed";
  std::string lines;
  std::set<std::string, std::less<>> seen;
  std::vector<std::string> unneeded;
  YamlPath paths;
  for (const std::string& line : one_option_a_line(text)) {
    const auto [name, value] = setting_of(line);
    const std::string path = yaml ? paths.of(line, name) : std::string(name);
    if (path.empty() || is_reference(value) || seen.contains(path)) continue;
    std::string ours = foreign_advice(keys, path);
    if (ours.empty()) continue;
    seen.insert(path);
    if (ours.starts_with(kUnneeded)) {
      if (unneeded.size() < kMostSettings) unneeded.emplace_back(name);
      continue;
    }
    if (seen.size() - unneeded.size() > kMostSettings) continue;
    if (ours.find(' ') == std::string::npos)
      ours += fmt::format("={}", value.substr(0, kLongestWord));
    lines +=
        fmt::format("\n     {:<{}} {}", fmt::format("{} = {}", path, value.substr(0, kLongestWord)),
                    yaml ? 48 : 36, ours);
  }
  if (!unneeded.empty()) lines += "\n     not needed: " + join(unneeded, ", ");
  return lines;
}

using Json = nlohmann::ordered_json;

/// The settings of a JSON file by their paths: "optimizer.params.lr".
void flatten(const Json& json, const std::string& path,
             std::vector<std::pair<std::string, Json>>& into) {
  for (const auto& [name, value] : json.items()) {
    const std::string inner = path.empty() ? name : path + "." + name;
    if (value.is_object())
      flatten(value, inner, into);
    else
      into.emplace_back(inner, value);
  }
}

/// Our setting for one of DeepSpeed whose value has another form here, as "key=value"; "" if it
/// sets nothing, and nullopt if foreign_advice() names the key for it.
std::optional<std::string> converted(const std::string& path, const Json& value) {
  const std::string word = value.is_string() ? fold_name(value.get<std::string>()) : "";
  const auto one_of = [&](const char* key, std::map<std::string, std::string> words) {
    const auto found = words.find(word);
    return found == words.end() ? std::optional<std::string>() : key + ("=" + found->second);
  };
  if (word == "auto" || word == "none" || value.is_null()) return "";
  if (path == "fp16.enabled" || path == "bf16.enabled")
    return value == true ? "train.precision=" + path.substr(0, 4) + "-mixed" : "";
  if (path == "optimizer.type")
    return one_of("optimizer.name", {{"adam", "adamw"}, {"adamw", "adamw"}, {"muon", "muon"}});
  if (path == "scheduler.type")
    return one_of(
        "optimizer.schedule",
        {{"warmuplr", "constant"}, {"warmupdecaylr", "linear"}, {"warmupcosinelr", "cosine"}});
  if (path == "zero_optimization.offload_optimizer.device")
    return one_of("parallel.offload", {{"cpu", "optimizer"}, {"nvme", "file"}});
  if (path == "zero_optimization.offload_param.device") return "parallel.offload=all";
  if (path == "optimizer.params.eps") return "optimizer.epsilon=" + dumped(value);
  if (path == "optimizer.params.betas" && value.is_array() && value.size() == 2)
    return fmt::format("optimizer.beta1={} optimizer.beta2={}", dumped(value[0]), dumped(value[1]));
  return std::nullopt;
}

/// The table of translation() for a configuration of DeepSpeed; "" for any other text.
std::string deepspeed_translation(const KeySet& keys, std::string_view text) {
  const Json json = ordered_json_unless_broken(text);
  if (!json.is_object() || json.contains("model") || json.contains("train")) return {};
  if (!json.contains("zero_optimization") && !json.contains("train_micro_batch_size_per_gpu") &&
      !json.contains("train_batch_size"))
    return {};
  std::vector<std::pair<std::string, Json>> settings;
  flatten(json, "", settings);
  std::string lines;
  std::set<std::string, std::less<>> given;  // keys that have a value
  for (const auto& [path, value] : settings) {
    if (given.size() > kMostSettings) break;
    std::optional<std::string> ours = converted(path, value);
    if (!ours) {
      ours = foreign_advice(keys, path);
      if (ours->starts_with("not needed")) continue;
      if (!ours->empty() && ours->find(' ') == std::string::npos) *ours += "=" + dumped(value);
    }
    const std::string key = ours->substr(0, ours->find('='));
    if (ours->empty() || (key.size() < ours->size() && !given.insert(key).second)) continue;
    lines += fmt::format("\n     {:<48} {}", path + " = " + dumped(value).substr(0, kLongestWord),
                         *ours);
  }
  return lines;
}

}  // namespace

std::string foreign_advice(const KeySet& keys, std::string_view name) {
  const std::string folded = fold_name(name);
  const std::string last = folded.substr(folded.rfind('.') + 1);
  static const std::vector<ForeignKey> kForeign = deck::foreign_keys();
  for (const ForeignKey& foreign : kForeign)
    if (foreign.name.find('.') != std::string::npos &&
        ("." + folded).ends_with("." + fold_name(foreign.name)))
      return foreign.advice;
  for (const std::string& wanted : {folded, last})
    for (const ForeignKey& foreign : kForeign)
      if (fold_name(foreign.name) == wanted) return foreign.advice;
  return deck::key_by_last_name(keys, last);
}

namespace {

/// Lines of a batch system at the beginning of a job script.
struct BatchSystem {
  const char* mark;
  const char* name;
  const char* submit;
};
constexpr std::array<BatchSystem, 5> kBatchSystems{
    {{"#PBS ", "a job script of PBS", "qsub -v DECK=DECK.json jobs/generic.pbs"},
     {"#SBATCH ", "a job script of SLURM", "sbatch jobs/generic.slurm DECK.json"},
     {"#BSUB ", "a job script of LSF", "jobs/launch build/choir train DECK.json in it"},
     {"#COBALT ", "a job script of Cobalt", "jobs/launch build/choir train DECK.json in it"},
     {"#FLUX", "a job script of Flux", "jobs/launch build/choir train DECK.json in it"}}};

const BatchSystem* batch_system_of(std::string_view text) {
  for (const std::string& line : split(text.substr(0, 16384), '\n'))
    for (const BatchSystem& system : kBatchSystems)
      if (std::string_view(line).starts_with(system.mark)) return &system;
  return nullptr;
}

/// The interpreter of a script, from its first line: "bash"; "" if it has none.
std::string interpreter_of(std::string_view text) {
  if (!text.starts_with("#!")) return {};
  std::string line(trim(text.substr(2, text.find('\n') - 2)));
  std::string program = line.substr(0, line.find(' '));
  program = program.substr(program.rfind('/') + 1);
  if (program == "env" && line.find(' ') != std::string::npos) {
    const std::string rest(trim(std::string_view(line).substr(line.rfind("env") + 3)));
    program = rest.substr(0, rest.find(' '));
  }
  return program;
}

/// True if the first line that says something begins like YAML or TOML ("key: value", "[section]",
/// "key = value"), which no JSON does.
bool has_settings_line(std::string_view text, char sign) {
  for (const std::string& any : split(text.substr(0, 4096), '\n')) {
    const std::string_view line = trim(any);
    if (line.empty() || line.starts_with('#') || line.starts_with("---")) continue;
    const auto end =
        static_cast<std::size_t>(std::ranges::find_if_not(line, is_of_name) - line.begin());
    const std::string_view rest = trim(line.substr(end));
    return end > 0 && !rest.empty() && rest.front() == sign;
  }
  return false;
}

/// The kind of a text that is no JSON, for messages; "" if it is unknown.
std::string language_of(std::string_view text, const std::string& source) {
  const std::string program = interpreter_of(text);
  if (program.starts_with("python")) return "a program in Python";
  if (!program.empty())
    return program.ends_with("sh") ? "a shell script" : "a script for " + program;
  const std::string ending = fold_name(std::filesystem::path(source).extension().string());
  for (const Language& any : kLanguages)
    if (ending == any.ending) return any.name;
  const std::string_view start = trim(text);
  if (start.starts_with("<?xml") || start.starts_with("<!DOCTYPE")) return "XML or HTML";
  if (start.starts_with("--") && start.size() > 2 && is_of_name(start[2]) && start[2] != '-')
    return "a list of arguments";
  if (start.starts_with(';')) return "an INI file";
  if (start.starts_with("import ") || start.starts_with("from ")) return "a program in Python";
  if (has_settings_line(text, ':')) return "YAML";
  if (has_settings_line(text, '=')) return "a list of settings (Python or TOML)";
  if (start.starts_with('[') && start.substr(0, start.find('\n')).ends_with(']') &&
      start.find('=') != std::string_view::npos && start.find('"') > start.find(']'))
    return "TOML";
  return {};
}

}  // namespace

void refuse_foreign_file(const KeySet& keys, std::string_view text, const std::string& source) {
  // An object of JSON is a deck, whatever the name of its file.
  std::string_view rest = trim(text);
  while (rest.starts_with("//")) rest = trim(rest.substr(std::min(rest.find('\n'), rest.size())));
  if (rest.starts_with('{')) {
    if (const std::string known = deepspeed_translation(keys, rest); !known.empty())
      throw DeckError(fmt::format("'{}' is a configuration of DeepSpeed, and no deck", source),
                      fmt::format("start from a deck of {}/ and set these keys in it or on the "
                                  "command line (legal values\n     may differ: `choir train "
                                  "--describe`):{}",
                                  own_decks_folder(), known));
    return;
  }
  if (const FileKind kind = file_kind(text.substr(0, kFileKindBytes)); kind != FileKind::unknown)
    throw DeckError(fmt::format("'{}' is {}, and a deck is JSON", source, describe(kind)),
                    "weights of other programs: choir import " + source +
                        "; data are named in a deck (data.train)");
  if (const BatchSystem* system = batch_system_of(text); system != nullptr)
    throw DeckError(
        fmt::format("'{}' is {}, and choir trains from a deck, which is JSON", source,
                    system->name),
        fmt::format("submit a job that names the deck: {}; decks are in inputs/", system->submit));
  const std::string language = language_of(text, source);
  if (language.empty()) return;
  const std::string deck = deck_like(source);
  const std::string start = deck.empty()
                                ? fmt::format("start from a deck of {}/", own_decks_folder())
                                : fmt::format("start from the deck of that name, {},", deck);
  const std::string known = translation(keys, text, language == "YAML");
  throw DeckError(
      fmt::format("'{}' is {}, and a deck is JSON", source, language),
      known.empty()
          ? start + (deck.empty() ? ";" : "") + " `choir train --describe` lists every key"
          : start +
                " and set these keys in it or on the command "
                "line (legal values\n     may differ: `choir train --describe`):" +
                known);
}

}  // namespace choir
