#include "src/data/tasks/eval_task.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/json_array_reader.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr const char* kForms =
    "a line is {\"context\", \"choices\", \"answer\": index}, {\"context\", \"continuation\"}, "
    "{\"context\", \"answer\": text} or {\"text\"}";
constexpr std::int64_t kUsualTokens = 64;
constexpr std::int64_t kMostGenerated = 65'536;

[[noreturn]] void refuse(const std::string& place, const std::string& what,
                         const std::string& cure = kForms) {
  throw DataError(place + ": " + what, cure);
}

TaskKind kind_of(const json& line, const std::string& place) {
  if (line.contains("choices")) return TaskKind::choices;
  if (line.contains("continuation")) return TaskKind::continuation;
  if (line.contains("text")) return TaskKind::text;
  if (line.contains("context") && line.contains("answer")) return TaskKind::generation;
  refuse(place, "the line has no \"choices\", \"continuation\", \"text\", or \"answer\"");
}

std::vector<std::string> keys_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::choices:
      return {"context", "choices", "answer", "gold", "delimiter"};
    case TaskKind::continuation:
      return {"context", "continuation", "delimiter"};
    case TaskKind::generation:
      return {"context", "answer", "until", "max_tokens"};
    case TaskKind::text:
      return {"text"};
  }
  return {};
}

// A misspelt "delimiter" would change the scores without an error.
void require_known_keys(const json& line, TaskKind kind, const std::string& place) {
  std::vector<std::string> known = keys_of(kind);
  known.insert(known.end(), {"id", "meta"});
  for (const auto& [key, value] : line.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    refuse(place, fmt::format("an item of kind {} has no key \"{}\"{}", name_of(kind), key,
                              nearest.empty() ? "" : "; nearest legal: \"" + nearest + "\""));
  }
}

/// The text under `key`; `absent` if the key may be absent and is.
std::string text_of(const json& line, const char* key, const std::string& place,
                    const char* absent = nullptr) {
  const auto found = line.find(key);
  if (found == line.end()) {
    if (absent != nullptr) return absent;
    refuse(place, fmt::format("the line has no \"{}\"", key));
  }
  if (!found->is_string()) refuse(place, fmt::format("\"{}\" is not a text", key));
  return found->get<std::string>();
}

std::string filled_text_of(const json& line, const char* key, const std::string& place) {
  std::string text = text_of(line, key, place);
  if (text.empty()) refuse(place, fmt::format("\"{}\" is empty", key));
  return text;
}

std::vector<std::string> texts_of(const json& list, const char* key, const char* one,
                                  const std::string& place) {
  if (!list.is_array()) refuse(place, fmt::format("\"{}\" is not a list", key));
  std::vector<std::string> texts;
  for (const json& entry : list) {
    if (!entry.is_string()) refuse(place, fmt::format("{} {} is not a text", one, texts.size()));
    texts.push_back(entry.get<std::string>());
    if (texts.back().empty()) refuse(place, fmt::format("{} {} is empty", one, texts.size() - 1));
  }
  return texts;
}

void read_choices(const json& line, const std::string& place, TaskItem& item) {
  item.choices = texts_of(line["choices"], "choices", "choice", place);
  if (item.choices.size() < 2)
    refuse(place, fmt::format("\"choices\" has {}, but a question needs at least two",
                              item.choices.empty() ? "no entry" : "one entry"));
  if (line.contains("answer") && line.contains("gold"))
    refuse(place, "the line has \"answer\" and \"gold\", which are two names of one key");
  const auto answer = line.contains("gold") ? line.find("gold") : line.find("answer");
  if (answer == line.end()) refuse(place, "the line has no \"answer\"");
  if (!answer->is_number_integer())
    refuse(place, "\"answer\" is not the index of a choice, an integer from 0");
  const auto count = std::ssize(item.choices);
  const bool fits = !answer->is_number_unsigned() ||
                    answer->get<std::uint64_t>() < static_cast<std::uint64_t>(count);
  item.answer = fits ? answer->get<std::int64_t>() : count;
  if (item.answer < 0 || item.answer >= count)
    refuse(place, fmt::format("\"answer\" is {}, but the {} choices have the indices 0 to {}",
                              dumped(*answer), count, count - 1));
}

void read_generation(const json& line, const std::string& place, TaskItem& item) {
  item.reference = filled_text_of(line, "answer", place);
  if (trim(item.reference).empty()) refuse(place, "\"answer\" is blank");
  item.until = {"\n"};
  if (line.contains("until")) item.until = texts_of(line["until"], "until", "string", place);
  item.max_tokens = kUsualTokens;
  const auto most = line.find("max_tokens");
  if (most == line.end()) return;
  if (!most->is_number_integer() || *most < 1 || *most > kMostGenerated)
    refuse(place, fmt::format("\"max_tokens\" is {}, but legal are 1 to {}", dumped(*most),
                              kMostGenerated));
  item.max_tokens = most->get<std::int64_t>();
}

TaskItem item_of(const json& line, TaskKind kind, const std::string& place) {
  require_known_keys(line, kind, place);
  TaskItem item;
  item.place = place;
  if (kind == TaskKind::text) {
    item.context = filled_text_of(line, "text", place);
    return item;
  }
  item.context = text_of(line, "context", place);
  if (kind == TaskKind::choices) {
    item.delimiter = text_of(line, "delimiter", place, " ");
    read_choices(line, place, item);
  } else if (kind == TaskKind::continuation) {
    item.delimiter = text_of(line, "delimiter", place, "");
    item.choices = {filled_text_of(line, "continuation", place)};
  } else {
    read_generation(line, place, item);
  }
  return item;
}

void require_utf8(std::string_view line, const std::string& place) {
  if (const std::size_t valid = valid_utf8(line); valid < line.size())
    refuse(place,
           fmt::format("byte {} of the line is not UTF-8, the only encoding supported", valid + 1),
           "convert the file to UTF-8");
}

}  // namespace

std::string_view name_of(TaskKind kind) {
  constexpr std::string_view kNames[] = {"choices", "continuation", "generation", "text"};
  return kNames[static_cast<int>(kind)];
}

EvalTask parse_task(std::string_view text, const std::string& source) {
  EvalTask task;
  task.name = std::filesystem::path(source).stem().string();
  task.source = source;
  TextRows rows(text, source);
  for (std::string bytes; rows.next(bytes);) {
    const std::int64_t number = rows.number();
    if (trim(bytes).empty()) continue;
    const std::string place = fmt::format("{}:{}", source, number);
    require_utf8(bytes, place);
    const json line = read_json_line(bytes, place);
    if (!line.is_object()) refuse(place, "the line is not a JSON object");
    const TaskKind kind = kind_of(line, place);
    if (task.items.empty()) task.kind = kind;
    if (kind != task.kind)
      refuse(place,
             fmt::format("the item is of kind {}, but {} is of kind {}", name_of(kind),
                         task.items.front().place, name_of(task.kind)),
             "give each kind a file of its own");
    task.items.push_back(item_of(line, kind, place));
  }
  if (task.items.empty()) throw DataError("task '" + source + "' has no items", kForms);
  return task;
}

}  // namespace choir
