#include "src/data/speech/data_sources.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <set>

#include "src/comm/agreement.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/core/yaml_reader.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

bool is_inside(const std::string& input_cfg) {
  return input_cfg.starts_with('[') || input_cfg.starts_with('{');
}

/// Parses the whole word as a number that is not negative.
template <class Number>
Number option_number(std::string_view word, const std::string& what) {
  Number number{};
  const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (problem != std::errc() || stop != word.data() + word.size() || !(number >= 0))
    throw DeckError(fmt::format("{}: '{}' is not a number from 0 on", what, word));
  return number;
}

/// Refuses weights and limits: a validation set contains every sample of its folders once.
void require_plain(const std::vector<SpeechInput>& inputs, const std::string& path) {
  for (const SpeechInput& input : inputs) {
    if (input.weight)
      throw DeckError(fmt::format("{}: a validation set has no weights", path),
                      "it holds every sample of its folders once; remove \"weight\"");
    if (input.limit > 0)
      throw DeckError(fmt::format("{}: a limit applies to the whole set, not to a folder", path),
                      "write limit=N after the list");
    require_plain(input.group, path);
  }
}

using Tags = std::vector<std::pair<std::string, std::string>>;

/// Options that are legal together, and the reason why families refuse them.
struct OptionGroup {
  bool EvalWords::*legal;
  std::vector<std::string_view> names;
  std::string_view syntax, why_not;
};

const std::vector<OptionGroup>& option_groups() {
  static const std::vector<OptionGroup> kGroups{
      {&EvalWords::batch_duration,
       {"batch_duration"},
       " [batch_duration=S]",
       "its micro-batches are not measured in seconds of audio"},
      {&EvalWords::durations,
       {"min_duration", "max_duration"},
       " [min_duration=S] [max_duration=S]",
       "its samples have no audio"},
      {&EvalWords::tags,
       {"tag"},
       " [tag.NAME=VALUE]",
       "tags group outputs that are compared with references, but only losses are measured"},
      {&EvalWords::answers,
       {"answers", "answer_tokens", "temperature", "top_k", "top_p"},
       " [answers=N] [answer_tokens=N] [temperature=X] [top_k=N] [top_p=X]",
       "no answers are sampled in its validation"},
      {&EvalWords::dialogues,
       {"dialogues"},
       " [dialogues=N]",
       "no dialogues are held in its validation"},
      {&EvalWords::batches,
       {"batches"},
       " [batches=N]",
       "its sets are evaluated whole, and limit=N limits one"}};
  return kGroups;
}

std::string syntax_of(EvalWords legal) {
  std::string syntax = "FOLDER[,FOLDER...] [limit=N]";
  for (const OptionGroup& group : option_groups())
    if (legal.*group.legal) syntax += group.syntax;
  return syntax;
}

void require_legal(const SpeechEvalSet& set, const std::string& name, EvalWords legal) {
  const std::string stem = name.substr(0, name.find('.'));
  for (const OptionGroup& group : option_groups())
    if (!(legal.*group.legal) && std::ranges::find(group.names, stem) != group.names.end())
      throw DeckError(
          fmt::format("data.validation.{}: '{}' has no effect on this kind of model: {}", set.name,
                      name, group.why_not),
          syntax_of(legal));
}

/// A number of samples, where -1 has a meaning of its own.
std::int64_t count_of(const std::string& word, const std::string& what) {
  return word == "-1" ? -1 : option_number<std::int64_t>(word, what);
}

double probability_of(const std::string& word, const std::string& what) {
  const auto number = option_number<double>(word, what);
  if (number > 0 && number <= 1) return number;
  throw DeckError(fmt::format("{}: {} is no share of the probability", what, word),
                  "legal: above 0, up to 1");
}

std::int64_t positive_of(const std::string& word, const std::string& what) {
  const auto number = option_number<std::int64_t>(word, what);
  if (number > 0 && number <= std::int64_t{1} << 20) return number;
  throw DeckError(fmt::format("{}: {} is out of range", what, word), "legal: 1 to 1048576");
}

void set_option(SpeechEvalSet& set, const std::string& word, EvalWords legal, Tags& tags) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string what = fmt::format("data.validation.{}, {}", set.name, name);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  GenerationOptions& made = set.generation;
  require_legal(set, name, legal);
  if (name == "limit")
    set.limit = option_number<std::int64_t>(value, what);
  else if (name == "batches")
    set.batches = value == "all" ? 0 : option_number<std::int64_t>(value, what);
  else if (name == "batch_duration")
    set.batch_duration = option_number<double>(value, what);
  else if (name == "min_duration")
    set.filter.min_duration = option_number<double>(value, what);
  else if (name == "max_duration")
    set.filter.max_duration = option_number<double>(value, what);
  else if (name.starts_with("tag."))
    tags.emplace_back(name.substr(4), value);
  else if (name == "answers")
    made.answers = count_of(value, what);
  else if (name == "answer_tokens")
    made.answer_tokens = positive_of(value, what);
  else if (name == "dialogues")
    made.dialogues = count_of(value, what);
  else if (name == "temperature")
    made.temperature = option_number<double>(value, what);
  else if (name == "top_k")
    made.top_k = positive_of(value, what);
  else if (name == "top_p")
    made.top_p = probability_of(value, what);
  else
    throw DeckError(fmt::format("data.validation.{}: '{}' is not understood", set.name, word),
                    syntax_of(legal));
}

/// Refuses options that others leave without effect.
void check_options(const SpeechEvalSet& set) {
  const GenerationOptions& made = set.generation;
  const std::string where = "data.validation." + set.name;
  if (made.temperature == 0 && (made.top_k > 0 || made.top_p < 1))
    throw DeckError(where +
                        ": top_k and top_p have no effect without temperature: greedy decoding "
                        "takes the most likely token",
                    "add temperature=1, or remove them");
  if (made.answers == -1 && (made.answer_tokens || made.temperature > 0))
    throw DeckError(where + ": answers=-1 generates no answers for the other options",
                    "remove answers, or the options about answers");
  if (set.filter.max_duration > 0 && set.filter.min_duration > set.filter.max_duration)
    throw DeckError(fmt::format("{}: min_duration={} is above max_duration={}", where,
                                set.filter.min_duration, set.filter.max_duration));
}

/// Checks the name or value of a tag: results are stored under them.
void check_tag_word(const std::string& word, const std::string& set) {
  const auto legal = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-.:+").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (word.empty() || !std::ranges::all_of(word, legal))
    throw DeckError(
        fmt::format("data.validation.{}: '{}' is not a valid name or value of a tag", set, word),
        "use letters, digits, '_', '-', '.', ':' and '+'");
}

/// Applies a tag of the set to its folders that have no tag of that name.
void set_tag(SpeechEvalSet& set, const std::string& name, const std::string& value) {
  check_tag_word(name, set.name);
  check_tag_word(value, set.name);
  set.tags.resize(set.folders.size());
  for (auto& tags : set.tags) tags.emplace(name, value);
}

/// Sets the folders from a list of folders and groups as in data.input_cfg.
void set_folders(SpeechEvalSet& set, const std::string& list, EvalWords legal) {
  const std::string path = "data.validation." + set.name;
  const JsonDocument document = parse_json(list, path);
  const SpeechMix mix = SpeechMix::of_json(document.root(), {}, path);
  require_plain(mix.inputs, path);
  for (const SpeechLeaf& leaf : leaves_of(mix)) {
    if (!leaf.tags.empty() && !legal.tags)
      throw DeckError(
          fmt::format("{}: tags have no effect on this kind of model: only losses are measured",
                      path),
          "give the folders sets of their own in data.validation");
    for (const auto& [name, value] : leaf.tags) {
      check_tag_word(name, set.name);
      check_tag_word(value, set.name);
    }
    set.folders.push_back(leaf.folder);
    set.tags.push_back(leaf.tags);
  }
  const auto empty = [](const auto& tags) { return tags.empty(); };
  if (std::ranges::all_of(set.tags, empty)) set.tags.clear();
}

/// True for a member of the object form that names folders, also in NeMo's words.
bool names_folders(std::string_view key) {
  constexpr std::string_view kNames[] = {"folder",    "folders",   "input_cfg", "manifest_filepath",
                                         "cuts_path", "shar_path", "paths"};
  return std::ranges::find(kNames, key) != std::end(kNames);
}

/// Reads the object form. Its members are the options of the word form, so that both forms accept
/// and refuse the same.
void read_object(SpeechEvalSet& set, const std::string& text, EvalWords legal, Tags& tags) {
  const std::string path = "data.validation." + set.name;
  const JsonDocument document = parse_json(text, path);
  for (const auto& [key, value] : document.root().items()) {
    const bool folders = names_folders(key);
    if (folders && !set.folders.empty())
      throw DeckError(fmt::format("{} names its folders twice", path), "keep one of the names");
    if (folders && value.is_string()) {
      set.folders = {value.get<std::string>()};
    } else if (folders && value.is_array()) {
      set_folders(set, dumped(value), legal);
    } else if (key == "tags" && value.is_object()) {
      require_legal(set, "tag", legal);
      for (const auto& [name, of] : value.items())
        tags.emplace_back(name, of.is_string() ? of.get<std::string>() : dumped(of));
    } else if (value.is_string() || value.is_number()) {
      set_option(set, key + "=" + (value.is_string() ? value.get<std::string>() : dumped(value)),
                 legal, tags);
    } else {
      throw DeckError(fmt::format("{}.{}: {} is not understood", path, key, dumped(value)),
                      R"(for example {"folder": "data/a", "limit": 100, "tags": {"lang": "en"}})");
    }
  }
}

/// Returns the last component of a path; a manifest ("val.json", "cuts.jsonl.gz") loses its
/// extension.
std::string set_name_of(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (const std::size_t at = name.find(".json"); at != std::string::npos && at > 0) name.resize(at);
  return name;
}

}  // namespace

std::string input_cfg_text(const std::string& input_cfg) {
  if (input_cfg.empty() || is_inside(input_cfg)) return input_cfg;
  const std::string ending = fs::path(input_cfg).extension();
  std::error_code ignored;
  if (!fs::is_regular_file(input_cfg, ignored))
    throw DeckError(
        fmt::format("data.input_cfg: '{}' is neither a list nor the name of a file", input_cfg),
        R"(for example [{"folder": "data/a", "weight": 2}, {"folder": "data/b", "weight": 1}])");
  const std::string text = read_deck_text(input_cfg);
  if (ending != ".yaml" && ending != ".yml") return text;
  try {
    return dumped(read_yaml(text, input_cfg));
  } catch (const StorageError& error) {
    throw DeckError(fmt::format("data.input_cfg: {}", error.what()), error.hint());
  }
}

SpeechMix blend_of(const std::string& input_cfg, const std::string& text,
                   const std::vector<std::string>& train, double temperature) {
  if (text.empty()) return SpeechMix::of_folders(train);
  return SpeechMix::of_text(text, temperature, is_inside(input_cfg) ? "data.input_cfg" : input_cfg);
}

SpeechMix open_blend(Communicator& world, const std::string& input_cfg,
                     const std::vector<std::string>& train, double temperature) {
  std::string text;
  together(world, [&] {
    if (world.rank() == 0) text = input_cfg_text(input_cfg);
  });
  broadcast_text(world, text);
  SpeechMix mix;
  together(world, [&] { mix = blend_of(input_cfg, text, train, temperature); });
  return mix;
}

std::uint64_t open_order_seed(Communicator& world, const std::string& shard_seed,
                              std::uint64_t run_seed) {
  std::int64_t attempt = 0;
  if (world.rank() == 0) attempt = std::chrono::system_clock::now().time_since_epoch().count();
  world.broadcast(&attempt, sizeof attempt, 0);
  return speech_order_seed(shard_seed, run_seed, static_cast<std::uint64_t>(attempt));
}

SpeechEvalSet eval_set_of(const std::string& name, const std::string& text, EvalWords legal) {
  SpeechEvalSet set;
  set.name = name;
  std::string words = text;
  Tags tags;
  if (trim(text).starts_with('{')) {
    read_object(set, text, legal, tags);
    words.clear();
  } else if (trim(text).starts_with('[')) {
    const std::size_t end = text.rfind(']') + 1;
    set_folders(set, text.substr(0, end == 0 ? text.size() : end), legal);
    words = text.substr(end);
  }
  for (const std::string& word : split(words, ' ')) {
    if (word.empty()) continue;
    if (set.folders.empty())
      set.folders = split(word, ',');
    else
      set_option(set, word, legal, tags);
  }
  for (const auto& [tag, value] : tags) set_tag(set, tag, value);
  check_options(set);
  if (set.folders.empty() || std::ranges::find(set.folders, "") != set.folders.end())
    throw DeckError(fmt::format("data.validation.{} = \"{}\" names no folder", name, text),
                    "for example \"data/digits/val\"");
  return set;
}

std::vector<SpeechEvalSet> eval_sets_of(const std::vector<std::string>& val,
                                        const std::map<std::string, std::string>& validation,
                                        EvalWords legal) {
  std::vector<SpeechEvalSet> sets;
  for (const std::string& folder : val) {
    SpeechEvalSet& set = sets.emplace_back();
    set.name = set_name_of(folder);
    set.folders = {folder};
  }
  for (const auto& [name, text] : validation) sets.push_back(eval_set_of(name, text, legal));
  std::set<std::string> names;
  for (const SpeechEvalSet& set : sets)
    if (!names.insert(set.name).second)
      throw DeckError(fmt::format("two validation sets are called '{}'", set.name),
                      "name them in data.validation, as {\"clean\": \"data/a/val\"}");
  return sets;
}

}  // namespace choir
