#include "src/data/chat/conversation.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>

#include "choir/core/error.hpp"
#include "src/core/json_array_reader.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLineBytes = std::size_t{64} << 20;
constexpr std::size_t kMostTurns = 10'000;
constexpr const char* kForms =
    "a line is {\"messages\": [{\"role\", \"content\"}]}, {\"conversations\": [{\"from\", "
    "\"value\"}]}, {\"prompt\", \"completion\"}, {\"instruction\", \"output\"} or a cut of Lhotse";

[[noreturn]] void refuse(const std::string& what, const std::string& cure = kForms) {
  throw DataError(what, cure);
}

std::string text_of(const ManifestJson& json, const char* key) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return {};
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) refuse(fmt::format("\"{}\" is not a text", key));
  std::string text;
  for (const ManifestJson& part : *value) {
    if (!part.is_object() || part.value("type", ManifestJson()) != "text" || !part.contains("text"))
      refuse(fmt::format("a part of \"{}\" is not a {{\"type\": \"text\", \"text\": ...}}", key),
             "only text parts are supported");
    text += text_of(part, "text");
  }
  return text;
}

/// "human" and "gpt" are the roles of ShareGPT.
std::string role_of(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word == "human") return "user";
  if (word == "gpt" || word == "model") return "assistant";
  if (word == "system" || word == "user" || word == "assistant") return word;
  refuse(fmt::format("unknown role '{}'", word), "use system, user (human) or assistant (gpt)");
}

std::size_t count_tags(std::string_view text) {
  std::size_t count = 0;
  const std::string_view tag = kAudioTag;
  for (auto at = text.find(tag); at != std::string_view::npos; at = text.find(tag, at + tag.size()))
    ++count;
  return count;
}

constexpr std::initializer_list<const char*> kCountKeys{"weight", "loss", "train"};

/// False for an answer that is not trained on: "weight" as in OpenAI's files, "loss" as in those of
/// ms-swift and "train" as in those of Axolotl is 0 or false.
bool counts_of(const ManifestJson& turn) {
  bool counts = true;
  for (const char* key : kCountKeys) {
    const auto value = turn.find(key);
    if (value == turn.end() || value->is_null()) continue;
    const bool yes = *value == true || *value == 1, no = *value == false || *value == 0;
    if (!yes && !no)
      refuse(fmt::format("\"{}\" of a turn is {}", key, dumped(*value)),
             "an answer is trained on or not: true or false, 1 or 0");
    counts = counts && yes;
  }
  return counts;
}

/// Throws DataError for a line of preference data, whose answers are not all wanted.
void refuse_preferences(const ManifestJson& json) {
  const auto refuse_key = [](const std::string& key) {
    refuse(
        fmt::format("\"{}\" belongs to preference data, whose bad answers must not be learnt", key),
        "write the preferred answers alone, as {\"messages\": [...]} or {\"prompt\", "
        "\"completion\"}, and leave lines with a false \"label\" out");
  };
  for (const auto& [key, value] : json.items()) {
    const bool held = value.is_structured() ? !value.empty() : value.is_string() && value != "";
    if (held && (key.starts_with("rejected") || key.starts_with("chosen"))) refuse_key(key);
    if ((key == "label" || key == "kto_tag") && value == false) refuse_key(key);
  }
}

/// Replaces in one pass, in linear time even for a text of nothing but `from`.
void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string replaced;
  std::size_t done = 0;
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    replaced.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  if (done > 0) text = replaced.append(text, done);
}

/// Collects the turns of one line.
class LineTurns {
 public:
  /// Audio is in `archive`, or in `folder` if `archive` is empty.
  LineTurns(std::string folder, std::string archive)
      : folder_(std::move(folder)), archive_(std::move(archive)) {}

  /// Appends a turn. A `part` of a turn, as NeMo's files have them, is joined with a neighbour of
  /// its role, with a blank between them.
  void add(Turn turn, bool part = false) {
    const bool follows = !turns_.empty() && turns_.back().role == turn.role;
    if (follows && turn.role == "system")
      refuse("two system turns follow each other", "join them into one");
    if (follows && part && turns_.back().counts == turn.counts) {
      Turn& last = turns_.back();
      last.text += " " + turn.text;
      last.clips.insert(last.clips.end(), turn.clips.begin(), turn.clips.end());
    } else {
      if (turns_.size() == kMostTurns) refuse(fmt::format("more than {} turns", kMostTurns));
      turns_.push_back(std::move(turn));
    }
  }
  void add_text(const std::string& role, std::string text, bool counts = true, bool part = false) {
    for (const char* tag : {"<|audioplaceholder|>", "<|audio_placeholder|>"})
      replace_all(text, tag, kAudioTag);
    add({.role = role, .text = std::move(text), .clips = {}, .counts = counts}, part);
  }
  AudioClip clip(const std::string& path, double offset, double duration) const {
    if (!std::isfinite(offset) || offset < 0 || !std::isfinite(duration) || duration <= 0)
      refuse(fmt::format("audio of {} seconds from second {} on", duration, offset),
             "\"duration\" must be positive and \"offset\" not negative");
    if (!archive_.empty()) return {path, offset, duration, archive_};
    const std::string beside = resolve_audio_path(folder_, path);
    const bool here = beside != path && !fs::exists(beside) && fs::exists(path);
    return {here ? path : beside, offset, duration, {}};
  }
  bool empty() const { return turns_.empty(); }
  /// Compares the keys of an object with those that its form has. A key that changes what a
  /// conversation says is refused unless its value is empty; others are noted as unused.
  void require_keys(const ManifestJson& object, std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const bool empty = value.is_null() || value == "" ||
                         (value.is_structured() && value.empty()) || value == false;
      if (!empty &&
          std::find(std::begin(kMeaningful), std::end(kMeaningful), key) != std::end(kMeaningful))
        refuse(fmt::format("\"{}\" is not supported, and it is a part of the conversation", key),
               fmt::format("write it into the text of a turn, or remove \"{}\"", key));
      unused_.push_back(key);
    }
  }
  std::vector<std::string> take_unused() { return std::move(unused_); }
  std::vector<Turn> take() { return std::move(turns_); }

 private:
  /// Keys with which other programs give more of a conversation than its turns.
  static constexpr std::string_view kMeaningful[] = {"system",       "system_prompt",
                                                     "history",      "tools",
                                                     "functions",    "tool_calls",
                                                     "tool_call_id", "function_call",
                                                     "reasoning",    "thinking",
                                                     "images",       "image",
                                                     "videos",       "reasoning_content",
                                                     "video",        "audios",
                                                     "audio",        "documents",
                                                     "context",      "prefix",
                                                     "masked",       "mask",
                                                     "trainable",    "chat_template_kwargs"};

  std::string folder_, archive_;
  std::vector<Turn> turns_;
  std::vector<std::string> unused_;
};

/// The system turn and the earlier turns that stand beside the others in forms of LLaMA-Factory:
/// {"system": TEXT, "history": [[QUESTION, ANSWER], ...]}.
void add_turns_beside(const ManifestJson& json, LineTurns& turns) {
  if (const std::string system = text_of(json, "system"); !system.empty())
    turns.add_text("system", system);
  const auto history = json.find("history");
  if (history == json.end() || history->is_null()) return;
  if (!history->is_array()) refuse("\"history\" is not a list");
  for (const ManifestJson& pair : *history) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      refuse("a part of \"history\" is not a pair of texts", "[QUESTION, ANSWER]");
    turns.add_text("user", pair[0].get<std::string>());
    turns.add_text("assistant", pair[1].get<std::string>());
  }
}

void add_messages(const ManifestJson& list, LineTurns& turns) {
  for (const ManifestJson& message : list) {
    if (!message.is_object()) refuse("a message is not an object");
    turns.require_keys(message, {"role", "content", "weight", "loss", "train"});
    const std::string role = role_of(text_of(message, "role"));
    if (!message.contains("content") || (message["content"].is_null() && role != "assistant"))
      refuse(fmt::format("a message of the {} has no \"content\"", role));
    turns.add_text(role, text_of(message, "content"), counts_of(message));
  }
}

void add_conversation(const ManifestJson& json, LineTurns& turns) {
  const std::string sound = text_of(json, "sound");
  for (const ManifestJson& said : json["conversations"]) {
    if (!said.is_object()) refuse("a turn is not an object");
    turns.require_keys(said,
                       {"from", "value", "type", "duration", "offset", "weight", "loss", "train"});
    const std::string role = role_of(text_of(said, "from"));
    const std::string type = text_of(said, "type");
    if (!said.contains("value")) refuse(fmt::format("a turn of the {} has no \"value\"", role));
    std::string value = text_of(said, "value");
    const bool counts = counts_of(said), part = !type.empty();
    if (type == "audio") {
      turns.add({.role = role,
                 .text = kAudioTag,
                 .clips = {turns.clip(value, number_of(said, "offset", 0),
                                      number_of(said, "duration", -1))}},
                part);
    } else if (!type.empty() && type != "text") {
      refuse(fmt::format("a turn is of type '{}'", type), "text or audio");
    } else if (const auto at = value.find("<sound>"); !sound.empty() && at != std::string::npos) {
      value.replace(at, 7, kAudioTag);
      turns.add({.role = role,
                 .text = std::move(value),
                 .clips = {turns.clip(sound, number_of(json, "offset", 0),
                                      number_of(json, "duration", -1))}});
    } else {
      turns.add_text(role, std::move(value), counts, part);
    }
  }
}

/// A prompt or a completion: a text, or a list of messages, as in files of TRL.
void add_side(const ManifestJson& json, const char* key, const char* role, LineTurns& turns) {
  const ManifestJson& side = json[key];
  if (side.is_array() && !side.empty() && side.front().is_object() && side.front().contains("role"))
    return add_messages(side, turns);
  turns.add_text(role, text_of(json, key));
}

std::string custom_text(const ManifestJson& json, const char* key) {
  if (std::string own = text_of(json, key); !own.empty()) return own;
  const auto custom = json.find("custom");
  return custom != json.end() && custom->is_object() ? text_of(*custom, key) : std::string();
}

void add_cut_turns(const ManifestJson& json, const ManifestPlace& place, const std::string& context,
                   LineTurns& turns) {
  AudioManifest manifest;
  add_cut(json, place, false, manifest);
  if (manifest.entries.size() != 1) refuse("the cut is not a single utterance");
  const AudioEntry& entry = manifest.entries.front();
  std::string asked = custom_text(json, "context"), answer,
              system = custom_text(json, "system_prompt");
  if (const auto list = json.find("supervisions"); list != json.end() && list->is_array())
    for (const ManifestJson& supervision : *list) {
      if (asked.empty()) asked = custom_text(supervision, "context");
      const std::string text = text_of(supervision, "text");
      answer += (answer.empty() || text.empty() ? "" : " ") + text;
    }
  if (!context.empty()) asked = context;
  if (!system.empty()) turns.add_text("system", system);
  if (!asked.empty()) turns.add_text("user", asked);
  turns.add(
      {.role = "user",
       .text = kAudioTag,
       .clips = {turns.clip(fs::absolute(entry.path).string(), entry.offset, entry.duration)}},
      true);
  turns.add_text("assistant", answer);
}

bool skipped(const ManifestJson& json) {
  for (const ManifestJson* at : {&json, json.contains("custom") ? &json["custom"] : &json})
    if (at->is_object() && at->contains("_skipme") && (*at)["_skipme"] != false &&
        !(*at)["_skipme"].is_null())
      return true;
  return false;
}

/// The turns of a line and its keys without use.
struct LineContent {
  std::vector<Turn> turns;
  std::vector<std::string> unused;
};
LineContent content_of(const ManifestJson& json, const ManifestPlace& place,
                       const std::string& context, const std::string& archive) {
  if (!json.is_object()) refuse("the line is not a JSON object");
  refuse_preferences(json);
  LineTurns turns(place.folder, archive);
  const auto list = [&](const char* key) {
    return json.contains(key) && json[key].is_array() && !json[key].empty();
  };
  if (list("messages")) {
    turns.require_keys(json, {"messages", "system", "id", "custom", "_skipme"});
    add_turns_beside(json, turns);
    add_messages(json["messages"], turns);
  } else if (list("conversations")) {
    turns.require_keys(json, {"conversations", "system", "sound", "offset", "duration", "id",
                              "custom", "_skipme"});
    add_turns_beside(json, turns);
    add_conversation(json, turns);
  } else if (json.contains("prompt") && json.contains("completion")) {
    turns.require_keys(json,
                       {"prompt", "completion", "system", "history", "id", "custom", "_skipme"});
    add_turns_beside(json, turns);
    add_side(json, "prompt", "user", turns);
    add_side(json, "completion", "assistant", turns);
  } else if (json.contains("instruction") && json.contains("output")) {
    turns.require_keys(
        json, {"instruction", "input", "output", "system", "history", "id", "custom", "_skipme"});
    add_turns_beside(json, turns);
    const std::string input = text_of(json, "input");
    turns.add_text("user", text_of(json, "instruction") + (input.empty() ? "" : "\n\n" + input));
    turns.add_text("assistant", text_of(json, "output"));
  } else if (json.contains("recording") || json.contains("supervisions")) {
    if (!archive.empty()) refuse("a cut of Lhotse specifies its own audio source", "omit --tars");
    add_cut_turns(json, place, context, turns);
  } else {
    refuse("it is not a conversation");
  }
  return {turns.take(), turns.take_unused()};
}

/// The reason why a conversation cannot be used; "" if it can.
std::string fault_of(const std::vector<Turn>& turns) {
  bool answered = false;
  for (const Turn& turn : turns) {
    if (count_tags(turn.text) != turn.clips.size()) return "clips and placeholders do not match";
    if (turn.role != "assistant") continue;
    if (!turn.clips.empty()) return "an answer with audio";
    if (trim(turn.text).empty()) return "empty answer";
    answered = true;
  }
  return answered ? "" : "no answer";
}

ManifestJson parsed_line(const std::string& line, const std::string& place) {
  if (line.size() > kMostLineBytes)
    refuse(fmt::format("the line has {} bytes, more than 64 MiB", line.size()));
  return read_ordered_json_line(line, place, {.exact_integers = true});
}

/// Adds the position in the file to the errors of `action`.
template <class Action>
void at_place(const std::string& place, const Action& action) {
  try {
    action();
  } catch (const JsonError&) {  // its message begins with the position
    throw;
  } catch (const Error& error) {
    throw DataError(fmt::format("{}: {}", place, error.what()), error.hint());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}", place, plain_cause(error)), kForms);
  }
}

void read_file(const std::string& path, const std::string& archive, const std::string& context,
               ConversationList& list) {
  LineReader lines(path);
  ManifestPlace place;
  place.folder = fs::path(path).parent_path().string();
  for (std::string line; lines.next(line);) {
    if (trim(line).empty()) continue;
    place.place = lines.place();
    at_place(place.place, [&] {
      const ManifestJson json = parsed_line(line, place.place);
      if (json.is_object() && skipped(json)) return list.drop("_skipme", place.place);
      auto [turns, unused] = content_of(json, place, context, archive);
      for (const std::string& key : unused) ++list.unused[key];
      if (const std::string fault = fault_of(turns); !fault.empty())
        list.drop(fault, place.place);
      else
        list.conversations.push_back({place.place, custom_text(json, "id"), std::move(turns)});
    });
  }
}

}  // namespace

void ConversationList::drop(const std::string& reason, const std::string& place) {
  Dropped& counts = dropped[reason];
  if (counts.count++ == 0) counts.first = place;
}

std::string ConversationList::dropped_text() const {
  std::int64_t total = 0;
  std::vector<std::string> parts;
  for (const auto& [reason, counts] : dropped) {
    total += counts.count;
    parts.push_back(fmt::format("{} {} (first {})", reason, counts.count, counts.first));
  }
  return total == 0 ? "" : fmt::format("{} left out: {}", total, join(parts, ", "));
}

std::string ConversationList::unused_text() const {
  std::vector<std::string> parts;
  for (const auto& [key, count] : unused)
    parts.push_back(fmt::format("{} ({})", printable_name(key), count));
  return join(parts, ", ");
}

std::vector<Turn> read_turns(const std::string& line, const std::string& place) {
  std::vector<Turn> turns;
  at_place(place, [&] { turns = content_of(parsed_line(line, place), {}, "", "").turns; });
  return turns;
}

ConversationList read_conversations(const std::vector<std::string>& paths,
                                    const std::string& context,
                                    const std::vector<std::string>& tars) {
  if (!tars.empty() && tars.size() != paths.size())
    throw DeckError(fmt::format("{} files of conversations, but {} patterns of tars", paths.size(),
                                tars.size()),
                    "give --tars once for each file, in the same order");
  ConversationList list;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto files = expand_shard_pattern(paths[i]);
    const auto archives =
        tars.empty() ? std::vector<std::string>(files.size()) : expand_shard_pattern(tars[i]);
    if (files.size() != archives.size())
      throw DataError(fmt::format("'{}' names {} files, '{}' {} tars", paths[i], files.size(),
                                  tars[i], archives.size()),
                      "each file needs its own tar");
    for (std::size_t k = 0; k < files.size(); ++k) read_file(files[k], archives[k], context, list);
  }
  if (list.conversations.empty())
    throw DataError(
        fmt::format("'{}' has no usable conversation{}{}", paths.empty() ? "" : paths.front(),
                    list.dropped.empty() ? "" : "; ", list.dropped_text()),
        kForms);
  return list;
}

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
  TextRows rows(text, source);
  for (std::string line; rows.next(line);) {
    if (trim(line).empty()) continue;
    if (prompts.empty()) json = trim(line).starts_with('{');
    if (prompts.size() == kMostPrompts)
      throw DataError(fmt::format("{} has more than {} prompts", source, kMostPrompts),
                      "split it into several files");
    const std::string place = fmt::format("{}:{}", source, rows.number());
    if (json)
      prompts.push_back(prompt_of_json(line, place));
    else
      prompts.push_back({.place = place, .id = "", .text = std::move(line), .turns = {}});
  }
  if (prompts.empty()) throw DataError(source + " has no prompt", kPromptForms);
  return prompts;
}

}  // namespace choir
