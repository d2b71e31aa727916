#include "choir/data/conversations/conversation_sources.hpp"

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"

namespace choir {

SpeechMix conversation_mix(const std::string& input_cfg, const std::vector<std::string>& train,
                           double temperature) {
  if (input_cfg.empty()) return SpeechMix::of_folders(train);
  const nlohmann::json json = json_unless_broken(input_cfg);
  if (json.is_discarded())
    throw DeckError("data.input_cfg is no JSON", "a list of {\"folder\": ..., \"weight\": ...}");
  if (!json.is_object()) return SpeechMix::of_json(json, {temperature}, "data.input_cfg");
  std::vector<double> levels{temperature};
  nlohmann::json inputs = nlohmann::json::array();
  for (const auto& [key, value] : json.items()) {
    if (key == "inputs")
      inputs = value;
    else if (key == "temperature" && value.is_array() &&
             std::all_of(value.begin(), value.end(), [](const auto& t) { return t.is_number(); }))
      levels = value.get<std::vector<double>>();
    else
      throw DeckError(fmt::format("data.input_cfg.{}: {} is not understood", key, dumped(value)),
                      "inputs (a list) and temperature (a list of numbers, one a level)");
  }
  return SpeechMix::of_json(inputs, levels, "data.input_cfg.inputs");
}

NamedFolders named_conversation_sets(const std::vector<std::string>& val,
                                     const std::map<std::string, std::string>& validation) {
  NamedFolders sets;
  for (const std::string& path : val) {
    const auto normal = std::filesystem::path(path).lexically_normal();
    sets.push_back({(normal.has_filename() ? normal : normal.parent_path()).filename(), {path}});
  }
  for (const auto& [name, folders] : validation) sets.push_back({name, split(folders, ',')});
  for (std::size_t i = 0; i < sets.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (sets[i].first == sets[j].first)
        throw DeckError(fmt::format("two validation sets are called '{}'", sets[i].first),
                        "name them in data.validation, as {\"clean\": \"data/a/val\"}");
  return sets;
}

}  // namespace choir
