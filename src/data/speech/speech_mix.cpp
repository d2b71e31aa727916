#include "choir/data/speech/speech_mix.hpp"

#include <algorithm>
#include <cmath>
#include "choir/core/json_value.hpp"

#include "choir/core/error.hpp"

namespace choir {
namespace {

using Inputs = std::vector<SpeechInput>;

double temperature_of(const SpeechMix& mix, std::size_t level) {
  if (mix.temperature.empty()) return 1;
  return mix.temperature[std::min(level, mix.temperature.size() - 1)];
}

void check_level(const Inputs& inputs) {
  if (inputs.empty())
    throw DeckError("a list of inputs is empty", "name folders of prepared data");
  const auto weighted = std::count_if(inputs.begin(), inputs.end(),
                                      [](const SpeechInput& input) { return input.weight; });
  if (weighted != 0 && weighted != std::ssize(inputs))
    throw DeckError(
        fmt::format("{} of {} inputs of one level have a weight", weighted, inputs.size()),
        "give all of them a weight, or none");
  for (const auto& input : inputs) {
    if (input.folder.empty() == input.group.empty())
      throw DeckError("an input needs a folder or a group, one of the two");
    if (input.weight && !(*input.weight > 0 && std::isfinite(*input.weight)))
      throw DeckError(fmt::format("the weight {} of an input is not above 0", *input.weight),
                      "leave out what is not wanted");
  }
}

void collect(const Inputs& inputs, const std::map<std::string, std::string>& tags,
             std::vector<SpeechLeaf>& leaves) {
  check_level(inputs);
  for (const auto& input : inputs) {
    auto merged = input.tags;
    merged.insert(tags.begin(), tags.end());
    if (input.group.empty())
      leaves.push_back({input.folder, merged});
    else
      collect(input.group, merged, leaves);
  }
}

// Walks the levels in the order of collect(), counting leaves.
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
  // What has no utterance gives its share to the others of its level.
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
  if (!tags.is_object()) throw DeckError(fmt::format("{}: tags are names with values", path));
  std::map<std::string, std::string> read;
  for (const auto& [name, value] : tags.items())
    read[name] = value.is_string() ? value.get<std::string>() : dumped(value);
  return read;
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
    if (key == "folder" && value.is_string())
      input.folder = value.get<std::string>();
    else if (key == "group")
      input.group = inputs_of(value, at);
    else if (key == "weight" && value.is_number())
      input.weight = value.get<double>();
    else if (key == "tags")
      input.tags = tags_of(value, at);
    else
      throw DeckError(fmt::format("{}: {} is not understood", at, dumped(value)),
                      "folder (text) or group (list), weight (number), tags (object)");
  }
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
  for (const auto& folder : folders) mix.inputs.push_back({folder, {}, {}, {}});
  return mix;
}

SpeechMix SpeechMix::of_json(const nlohmann::json& list, const std::vector<double>& temperature,
                             const std::string& path) {
  return {inputs_of(list, path), temperature};
}

std::vector<SpeechLeaf> leaves_of(const SpeechMix& mix) {
  for (const double tau : mix.temperature)
    if (!(tau >= 0 && std::isfinite(tau)))
      throw DeckError(fmt::format("the temperature {} of a blend is below 0", tau),
                      "1: the weights as given; 0: all alike");
  std::vector<SpeechLeaf> leaves;
  collect(mix.inputs, {}, leaves);
  return leaves;
}

std::vector<SpeechPool> pools_of(const SpeechMix& mix, std::span<const std::int64_t> utterances) {
  return PoolMaker(mix, utterances).pools();
}

}  // namespace choir
