#include "choir/data/conversations/conversation_sources.hpp"

#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"

namespace choir {

SpeechMix conversation_mix(const std::string& input_cfg, const std::vector<std::string>& train) {
  if (input_cfg.empty()) return SpeechMix::of_folders(train);
  const nlohmann::json json = json_unless_broken(input_cfg);
  if (json.is_discarded())
    throw DeckError("data.input_cfg is no JSON", "a list of {\"folder\": ..., \"weight\": ...}");
  return SpeechMix::of_json(json, {}, "data.input_cfg");
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
