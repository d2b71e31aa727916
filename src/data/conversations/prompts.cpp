#include "choir/data/conversations/prompts.hpp"

#include "choir/core/error.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"
#include "choir/core/utf8_text.hpp"

namespace choir {
namespace {

constexpr const char* kPromptForms =
    "a line is {\"prompt\": \"...\"} or {\"messages\": [{\"role\": \"user\", \"content\": "
    "\"...\"}]}";

Prompt prompt_of_json(const std::string& line, const std::string& place) {
  const nlohmann::json json = read_json_line(line, place);
  if (!json.is_object()) throw DataError(place + ": the line is not a JSON object", kPromptForms);
  Prompt prompt{.place = place, .id = "", .text = "", .turns = {}};
  if (const auto id = json.find("id"); id != json.end())
    prompt.id = id->is_string() ? id->get<std::string>() : dumped(*id);
  if (json.contains("prompt")) {
    if (!json["prompt"].is_string() || json["prompt"].get<std::string>().empty())
      throw DataError(place + ": \"prompt\" is not a text, or is empty", kPromptForms);
    prompt.text = json["prompt"].get<std::string>();
    return prompt;
  }
  if (!json.contains("messages") && !json.contains("conversations"))
    throw DataError(place + ": the line has neither \"prompt\" nor \"messages\"", kPromptForms);
  prompt.turns = read_turns(line, place);
  for (const Turn& turn : prompt.turns)
    if (!turn.clips.empty())
      throw DataError(place + ": a turn has audio, but this model has no audio input",
                      kPromptForms);
  if (prompt.turns.empty() || prompt.turns.back().role == "assistant")
    throw DataError(place + ": the last turn is the assistant's, so there is nothing to answer",
                    "remove the last answer");
  return prompt;
}

}  // namespace

std::vector<Prompt> read_prompts(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostPrompts = 1'000'000;
  if (!is_utf8(std::string(text)))
    throw DataError(source + " is not UTF-8, the only encoding supported", "convert it");
  std::vector<Prompt> prompts;
  bool json = false;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (trim(line).empty()) continue;
    if (prompts.empty()) json = trim(line).starts_with('{');
    if (prompts.size() == kMostPrompts)
      throw DataError(fmt::format("{} has more than {} prompts", source, kMostPrompts),
                      "split it into several files");
    const std::string place = fmt::format("{}:{}", source, number);
    if (json)
      prompts.push_back(prompt_of_json(line, place));
    else
      prompts.push_back({.place = place, .id = "", .text = std::move(line), .turns = {}});
  }
  if (prompts.empty()) throw DataError(source + " has no prompt", kPromptForms);
  return prompts;
}

}  // namespace choir
