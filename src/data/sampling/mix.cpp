#include "src/data/sampling/mix.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "choir/core/error.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Inputs = std::vector<SpeechInput>;

double temperature_of(const SpeechMix& mix, std::size_t level) {
  if (mix.temperature.empty()) return 1;
  return mix.temperature[std::min(level, mix.temperature.size() - 1)];
}

void check_level(const Inputs& inputs) {
  if (inputs.empty()) throw DeckError("a list of inputs is empty", "name folders of prepared data");
  const auto weighted = std::count_if(inputs.begin(), inputs.end(),
                                      [](const SpeechInput& input) { return input.weight; });
  if (weighted != 0 && weighted != std::ssize(inputs))
    throw DeckError(
        fmt::format("{} of {} inputs of one level have a weight", weighted, inputs.size()),
        "give all of them a weight, or none");
  for (const auto& input : inputs) {
    if (input.folder.empty() == input.group.empty())
      throw DeckError("an input needs either a folder or a group");
    if (input.limit != 0 && !input.group.empty())
      throw DeckError("a limit applies to a folder, not to a group",
                      "give it to the folders in it");
    if (input.weight && !(*input.weight > 0 && std::isfinite(*input.weight)))
      throw DeckError(fmt::format("the weight {} of an input is not above 0", *input.weight),
                      "remove inputs that are not wanted");
  }
}

void collect(const Inputs& inputs, const std::map<std::string, std::string>& tags,
             std::vector<SpeechLeaf>& leaves) {
  check_level(inputs);
  for (const auto& input : inputs) {
    auto merged = input.tags;
    merged.insert(tags.begin(), tags.end());
    if (input.group.empty())
      leaves.push_back({input.folder, merged, input.limit});
    else
      collect(input.group, merged, leaves);
  }
}

// Traverses the levels in the order of collect(), counting leaves.
class PoolMaker {
 public:
  PoolMaker(const SpeechMix& mix, std::span<const std::int64_t> utterances)
      : mix_(mix), utterances_(utterances) {}

  std::vector<SpeechPool> pools() {
    level(mix_.inputs, 0, 1);
    return std::move(pools_);
  }

 private:
  static std::size_t count_leaves(const Inputs& inputs) {
    std::size_t count = 0;
    for (const auto& input : inputs) count += input.group.empty() ? 1 : count_leaves(input.group);
    return count;
  }
  std::int64_t utterances_from(std::size_t leaf, std::size_t count) const {
    std::int64_t sum = 0;
    for (const std::int64_t n : utterances_.subspan(leaf, count)) sum += n;
    return sum;
  }
  static std::size_t leaves_in(const SpeechInput& input) {
    return input.group.empty() ? 1 : count_leaves(input.group);
  }
  bool one_pool(const Inputs& inputs, std::size_t depth) const {
    if (temperature_of(mix_, depth) != 1) return false;
    return std::all_of(inputs.begin(), inputs.end(), [&](const SpeechInput& input) {
      return !input.weight && (input.group.empty() || one_pool(input.group, depth + 1));
    });
  }
  void add_pool(std::size_t count, double probability) {
    SpeechPool pool;
    pool.probability = probability;
    for (std::size_t i = 0; i < count; ++i, ++leaf_)
      if (utterances_[leaf_] > 0) pool.leaves.push_back(static_cast<int>(leaf_));
    if (!pool.leaves.empty()) pools_.push_back(std::move(pool));
  }
  // Adds the pools of a level. The share of an entry without utterances is divided among the
  // others.
  void level(const Inputs& inputs, std::size_t depth, double probability) {
    if (one_pool(inputs, depth)) return add_pool(count_leaves(inputs), probability);
    std::vector<double> shares;
    double sum = 0;
    std::size_t leaf = leaf_;
    for (const auto& input : inputs) {
      const std::size_t count = leaves_in(input);
      const auto there = static_cast<double>(utterances_from(leaf, count));
      leaf += count;
      const double weight = input.weight.value_or(there);
      shares.push_back(there > 0 ? std::pow(weight, temperature_of(mix_, depth)) : 0);
      sum += shares.back();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double share = sum > 0 ? probability * shares[i] / sum : 0;
      if (inputs[i].group.empty())
        add_pool(1, share);
      else
        level(inputs[i].group, depth + 1, share);
    }
  }

  const SpeechMix& mix_;
  std::span<const std::int64_t> utterances_;
  std::vector<SpeechPool> pools_;
  std::size_t leaf_ = 0;
};

std::map<std::string, std::string> tags_of(const nlohmann::json& tags, const std::string& path) {
  if (!tags.is_object())
    throw DeckError(fmt::format("{}: tags must be an object of names and values", path));
  std::map<std::string, std::string> read;
  for (const auto& [name, value] : tags.items())
    read[name] = value.is_string() ? value.get<std::string>() : dumped(value);
  return read;
}

/// True for the key of a folder; in NeMo each type of input has its own key for the location.
bool names_folder(std::string_view key) {
  constexpr std::string_view kNames[] = {"folder", "manifest_filepath", "cuts_path", "shar_path",
                                         "paths"};
  return std::ranges::find(kNames, key) != std::end(kNames);
}

/// Checks NeMo's "type" of an input: the data determine the type, so the value only has to be
/// possible.
void check_type(const nlohmann::json& type, bool group, const std::string& path) {
  constexpr std::string_view kTypes[] = {"nemo",
                                         "lhotse",
                                         "lhotse_shar",
                                         "lhotse_as_conversation",
                                         "s2s_as_conversation",
                                         "multimodal_conversation",
                                         "share_gpt",
                                         "nemo_sft_jsonl",
                                         "txt"};
  const std::string name = type.is_string() ? type.get<std::string>() : dumped(type);
  if (name == "group" && !group)
    throw DeckError(fmt::format("{}: a group without a list", path), R"("input_cfg": [...])");
  if (name != "group" && group)
    throw DeckError(fmt::format("{}: '{}' has a list of inputs", path, name), R"("type": "group")");
  if (name != "group" && std::ranges::find(kTypes, name) == std::end(kTypes))
    throw DeckError(
        fmt::format("{}: '{}' is not understood", path, name),
        fmt::format("group, {}, or no type: prepared folders say what they are",
                    join(std::vector<std::string>(std::begin(kTypes), std::end(kTypes)), ", ")));
}

Inputs inputs_of(const nlohmann::json& list, const std::string& path);

SpeechInput input_of(const nlohmann::json& item, const std::string& path) {
  SpeechInput input;
  if (item.is_string()) {
    input.folder = item.get<std::string>();
    return input;
  }
  if (!item.is_object())
    throw DeckError(fmt::format("{} is neither the name of a folder nor an object", path),
                    R"({"folder": "data/a", "weight": 2})");
  for (const auto& [key, value] : item.items()) {
    const std::string at = path + "." + key;
    if (names_folder(key) && value.is_string() && input.folder.empty())
      input.folder = value.get<std::string>();
    else if (key == "group" || key == "input_cfg")
      input.group = inputs_of(value, at);
    else if (key == "weight" && value.is_number())
      input.weight = value.get<double>();
    else if (key == "limit" && value.is_number_integer() && value.get<std::int64_t>() > 0)
      input.limit = value.get<std::int64_t>();
    else if (key == "tags")
      input.tags = tags_of(value, at);
    else if (key != "type")
      throw DeckError(fmt::format("{}: {} is not understood", at, dumped(value)),
                      "folder (text) or group (list), weight (number), limit (a whole number from "
                      "1 on), tags (object)");
  }
  if (item.contains("type")) check_type(item.at("type"), !input.group.empty(), path + ".type");
  return input;
}

Inputs inputs_of(const nlohmann::json& list, const std::string& path) {
  if (!list.is_array()) throw DeckError(fmt::format("{} is not a list", path));
  Inputs inputs;
  for (std::size_t i = 0; i < list.size(); ++i)
    inputs.push_back(input_of(list[i], fmt::format("{}[{}]", path, i)));
  try {
    check_level(inputs);
  } catch (const DeckError& error) {
    throw DeckError(fmt::format("{}: {}", path, error.what()), error.hint());
  }
  return inputs;
}

}  // namespace

SpeechMix SpeechMix::of_folders(const std::vector<std::string>& folders) {
  SpeechMix mix;
  for (const auto& folder : folders) mix.inputs.push_back({.folder = folder});
  return mix;
}

SpeechMix SpeechMix::of_text(const std::string& text, double temperature,
                             const std::string& source) {
  const std::string path = "data.input_cfg";
  const JsonDocument document = parse_json(text, source);
  const nlohmann::json& root = document.root();
  if (!root.is_object()) return of_json(root, {temperature}, path);
  std::vector<double> levels{temperature};
  nlohmann::json inputs = nlohmann::json::array();
  for (const auto& [key, value] : root.items()) {
    if (key == "inputs" || key == "input_cfg")
      inputs = value;
    else if (key == "temperature" && value.is_array() &&
             std::ranges::all_of(value, [](const auto& t) { return t.is_number(); }))
      levels = value.get<std::vector<double>>();
    else
      throw DeckError(fmt::format("{}.{}: {} is not understood", path, key, dumped(value)),
                      "inputs (a list) and temperature (a list of numbers, one a level)");
  }
  return of_json(inputs, levels, path + ".inputs");
}

SpeechMix SpeechMix::of_json(const nlohmann::json& list, const std::vector<double>& temperature,
                             const std::string& path) {
  return {inputs_of(list, path), temperature};
}

std::vector<SpeechLeaf> leaves_of(const SpeechMix& mix) {
  for (const double tau : mix.temperature)
    if (!(tau >= 0 && std::isfinite(tau)))
      throw DeckError(fmt::format("a blend has a temperature of {}, below 0", tau),
                      "1: the weights as given; 0: all equal");
  std::vector<SpeechLeaf> leaves;
  collect(mix.inputs, {}, leaves);
  return leaves;
}

std::vector<SpeechPool> pools_of(const SpeechMix& mix, std::span<const std::int64_t> utterances) {
  return PoolMaker(mix, utterances).pools();
}

}  // namespace choir
