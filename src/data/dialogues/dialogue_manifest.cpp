#include "src/data/dialogues/dialogue_manifest.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_manifest.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Removes time stamps, which have the form "<|123|>" between words, and repeated blanks.
std::string tidy_text(const std::string& text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "<|") == 0) {
      const std::size_t end = text.find("|>", at);
      const std::string stamp = end == std::string::npos ? "" : text.substr(at + 2, end - at - 2);
      if (!stamp.empty() && std::all_of(stamp.begin(), stamp.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; })) {
        kept += ' ';
        at = end + 1;
        continue;
      }
    }
    kept += text[at];
  }
  std::vector<std::string> words;
  for (char& c : kept)
    if (std::isspace(static_cast<unsigned char>(c)) != 0) c = ' ';
  for (const std::string& word : split(kept, ' '))
    if (!word.empty()) words.push_back(word);
  return join(words, " ");
}

/// The position of a line of a dialogue manifest.
struct DialoguePlace {
  std::string folder;  ///< base of relative paths
  std::string shar;    ///< number of the part of a Shar, or ""
  std::string line{};  ///< file:line
};

/// The absolute path of the tar of a field in a part of a Shar.
std::string tar_of(const DialoguePlace& place, const std::string& field) {
  const fs::path tar = fs::absolute(fmt::format("{}/{}.{}.tar", place.folder, field, place.shar));
  if (!fs::exists(tar))
    throw AudioError(
        AudioFault::missing_file,
        fmt::format("'{}' does not exist, where its {} should be", tar.string(), field));
  return tar.string();
}

/// The recording of a field of a cut with absolute paths of its sources.
ManifestJson placed_recording(const ManifestJson& recording, const DialoguePlace& place,
                              const std::string& field) {
  if (!recording.is_object()) bad_line("a recording that is not an object");
  ManifestJson placed = recording;
  const auto sources = placed.find("sources");
  if (sources == placed.end() || !sources->is_array() || sources->empty())
    bad_line("a recording has no \"sources\"");
  for (auto& source : *sources) {
    if (!source.is_object()) bad_line("a source of a recording is not an object");
    const std::string type = string_of(source, "type");
    if (type == "file")
      source["source"] =
          fs::absolute(resolve_audio_path(place.folder, string_of(source, "source"))).string();
    else if (type == "shar" && !place.shar.empty())
      source["source"] = tar_of(place, field);
  }
  return placed;
}

ManifestJson recording_of_file(const std::string& folder, const std::string& file, int channels) {
  ManifestJson source;
  source["type"] = "file";
  source["channels"] = channels == 2 ? ManifestJson{0, 1} : ManifestJson::array({0});
  source["source"] = fs::absolute(resolve_audio_path(folder, file)).string();
  ManifestJson recording;
  recording["id"] = file;
  recording["sources"] = ManifestJson::array({source});
  return recording;
}

/// The recordings of both sides, and the channel of each.
struct Sides {
  ManifestJson user, agent;
  int user_channel = 0, agent_channel = 0;
};

const ManifestJson& member_of(const ManifestJson& json, const char* key, const char* what) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) bad_line(fmt::format("it has no {}", what));
  return *found;
}

Sides sides_of_mono(const ManifestJson& cut, const DialoguePlace& place) {
  const auto custom = cut.find("custom");
  const bool inside =
      custom != cut.end() && custom->is_object() && custom->contains("target_audio");
  Sides sides;
  sides.user = placed_recording(member_of(cut, "recording", "\"recording\""), place, "recording");
  sides.agent = placed_recording(
      member_of(inside ? *custom : cut, "target_audio", "\"target_audio\" of the agent"), place,
      "target_audio");
  sides.user_channel = small_of(cut, "channel", 0);
  return sides;
}

/// The sides of a dialogue in one recording of two channels; the channels of the supervisions
/// decide whose they are.
Sides sides_of_multi(const ManifestJson& cut, const DialogueRoles& roles,
                     const DialoguePlace& place) {
  const auto channels = cut.find("channel");
  if (channels == cut.end() || !channels->is_array() || channels->size() != 2 ||
      !(*channels)[0].is_number_integer() || !(*channels)[1].is_number_integer())
    bad_line("a dialogue in one recording needs two channels, \"channel\": [0, 1]");
  Sides sides;
  sides.user = sides.agent =
      placed_recording(member_of(cut, "recording", "\"recording\""), place, "recording");
  sides.user_channel = (*channels)[0].get<int>();
  sides.agent_channel = (*channels)[1].get<int>();
  bool swapped = false, said = false;
  for (const auto& supervision : cut.value("supervisions", ManifestJson::array())) {
    const int channel = supervision.is_object() && supervision.contains("channel") &&
                                supervision["channel"].is_number_integer()
                            ? supervision["channel"].get<int>()
                            : -1;
    if (channel != sides.user_channel && channel != sides.agent_channel) continue;
    const bool agent = roles.is_agent(string_of(supervision, "speaker"), place.line);
    const bool other = agent == (channel == sides.user_channel);
    if (said && other != swapped) bad_line("a channel with speech of both user and agent");
    swapped = other;
    said = true;
  }
  if (swapped) std::swap(sides.user_channel, sides.agent_channel);
  return sides;
}

Sides sides_of(const ManifestJson& line, const DialogueRoles& roles, const DialoguePlace& place) {
  if (line.contains("audio_filepath")) {
    const std::string file = string_of(line, "audio_filepath");
    const std::string other = string_of(line, "target_audio_filepath");
    Sides sides;
    sides.user = recording_of_file(place.folder, file, other.empty() ? 2 : 1);
    sides.agent = other.empty() ? sides.user : recording_of_file(place.folder, other, 1);
    sides.agent_channel = other.empty() ? 1 : 0;
    return sides;
  }
  const std::string type = string_of(line, "type");
  if (type == "MultiCut") return sides_of_multi(line, roles, place);
  if (!type.empty() && type != "MonoCut")
    throw AudioError(AudioFault::refused,
                     fmt::format("it is a {}; dialogues are MonoCuts with \"target_audio\", or "
                                 "MultiCuts of two channels",
                                 type));
  return sides_of_mono(line, place);
}

std::vector<DialogueTurn> sorted(std::vector<DialogueTurn> turns) {
  std::stable_sort(turns.begin(), turns.end(),
                   [](const DialogueTurn& a, const DialogueTurn& b) { return a.start < b.start; });
  return turns;
}

/// The words of a supervision with their times; may be empty.
std::vector<DialogueWord> aligned_words(const ManifestJson& supervision) {
  std::vector<DialogueWord> words;
  const auto alignment = supervision.find("alignment");
  if (alignment == supervision.end() || !alignment->is_object()) return words;
  const auto items = alignment->find("word");
  if (items == alignment->end()) return words;
  double last = -HUGE_VAL;
  for (const auto& item : *items) {
    const bool is_item = item.is_array() && item.size() >= 3 && item[0].is_string() &&
                         item[1].is_number() && item[2].is_number();
    if (!is_item) bad_line("an alignment of words is a list of [word, start, duration]");
    DialogueWord word{tidy_text(item[0].get<std::string>()), item[1].get<double>(),
                      item[2].get<double>()};
    if (!std::isfinite(word.start) || !(word.duration >= 0 && std::isfinite(word.duration)) ||
        word.start < last)
      bad_line(fmt::format("the alignment of '{}', {} s from {} s on, is not in order", word.text,
                           word.duration, word.start));
    last = word.start;
    if (!word.text.empty()) words.push_back(std::move(word));  // pauses have no text
  }
  return words;
}

std::vector<DialogueTurn> supervised_turns(const ManifestJson& line, const DialogueRoles& roles,
                                           const std::string& place, double duration) {
  const auto list = line.find("supervisions");
  if (list == line.end() || !list->is_array() || list->empty())
    bad_line("it has no \"supervisions\" with speakers and times");
  std::vector<DialogueTurn> turns;
  for (const auto& supervision : *list) {
    if (!supervision.is_object()) bad_line("a supervision is not an object");
    DialogueTurn turn;
    turn.agent = roles.is_agent(string_of(supervision, "speaker"), place);
    turn.start = number_of(supervision, "start", -1);
    turn.duration = number_of(supervision, "duration", -1);
    if (!supervision.contains("start") || !std::isfinite(turn.start) ||
        !(turn.duration > 0 && std::isfinite(turn.duration)))
      bad_line("a supervision without \"start\", or without a \"duration\" above 0");
    if (turn.start >= duration || turn.start + turn.duration <= 0)
      bad_line(fmt::format("a supervision at {} s, outside of {} s", turn.start, duration));
    turn.duration += std::min(0.0, turn.start);
    turn.start = std::max(0.0, turn.start);
    turn.text = tidy_text(string_of(supervision, "text"));
    if (turn.agent) turn.words = aligned_words(supervision);
    turns.push_back(std::move(turn));
  }
  return sorted(std::move(turns));
}

ManifestJson json_of(const DialogueTurn& turn) {
  ManifestJson json;
  json["agent"] = turn.agent;
  json["start"] = turn.start;
  json["duration"] = turn.duration;
  json["text"] = turn.text;
  for (const DialogueWord& word : turn.words)
    json["words"].push_back({word.text, word.start, word.duration});
  return json;
}

DialogueTurn turn_of(const ManifestJson& json) {
  DialogueTurn turn{.agent = json.at("agent").get<bool>(),
                    .start = json.at("start").get<double>(),
                    .duration = json.at("duration").get<double>(),
                    .text = json.at("text").get<std::string>()};
  for (const auto& word : json.value("words", ManifestJson::array()))
    turn.words.push_back(
        {word.at(0).get<std::string>(), word.at(1).get<double>(), word.at(2).get<double>()});
  return turn;
}

/// The text of a turn that a recogniser learns: the words that are heard, if they are known. With
/// the full text of an interrupted turn it would learn to invent words.
std::string heard_text(const DialogueTurn& turn) {
  if (turn.words.empty()) return turn.text;
  std::vector<std::string> words;
  for (const DialogueWord& word : turn.words) words.push_back(word.text);
  return join(words, " ");
}

/// A cut of one side; its text is what is heard of that side.
std::string cut_of_side(const DialogueEntry& entry, const ManifestJson& recording, int channel,
                        double start, bool agent) {
  const double end = number_of(recording, "duration", start + entry.duration);
  ManifestJson cut;
  cut["id"] = entry.id;
  cut["start"] = start;
  cut["duration"] = std::min(entry.duration, end - start);
  cut["channel"] = channel;
  std::vector<std::string> texts;
  for (const DialogueTurn& turn : entry.turns)
    if (turn.agent == agent && !turn.text.empty()) texts.push_back(heard_text(turn));
  cut["supervisions"] = ManifestJson::array({{{"text", join(texts, " ")}}});
  cut["recording"] = recording;
  cut["type"] = "MonoCut";
  if (!agent) {
    cut["turns"] = ManifestJson::array();
    for (const DialogueTurn& turn : entry.turns) cut["turns"].push_back(json_of(turn));
  }
  return dumped(cut);
}

class DialogueReader {
 public:
  DialogueReader(const DialogueRoles& roles, DialogueManifest& manifest)
      : roles_(roles), manifest_(manifest) {}

  void read(const std::string& path) {
    if (!fs::is_directory(path))
      return read_lines(path, {.folder = fs::path(path).parent_path().string(), .shar = {}});
    const std::vector<SharPart> parts = shar_parts(path);
    if (parts.empty())
      throw DataError(
          fmt::format("folder '{}' is not a Lhotse Shar (no cuts.000000.jsonl.gz)", path),
          "give the manifests in it instead");
    for (const SharPart& part : parts) read_lines(part.cuts, {.folder = path, .shar = part.number});
  }

 private:
  void read_lines(const std::string& path, DialoguePlace place) {
    LineReader lines(path);
    const std::size_t before = manifest_.entries.size() + manifest_.left_out.size();
    for (std::string line; lines.next(line);) {
      place.line = lines.place();
      if (!trim(line).empty()) read_line(line, place);
    }
    if (manifest_.entries.size() + manifest_.left_out.size() == before)
      throw DataError(fmt::format("manifest '{}' is empty", path),
                      "it needs one line per dialogue");
  }

  void read_line(const std::string& line, const DialoguePlace& place) {
    DialogueEntry entry;
    entry.place = place.line;
    try {
      const ManifestJson json = manifest_json(line);
      if (!json.is_object()) throw AudioError(AudioFault::not_json, "not a JSON object");
      read_entry(json, place, entry);
      manifest_.entries.push_back(std::move(entry));
    } catch (const AudioError& error) {
      manifest_.left_out.push_back({.place = place.line,
                                    .id = entry.id,
                                    .reason = std::string(name_of(error.fault())),
                                    .detail = error.what(),
                                    .hint = error.hint(),
                                    .duration = entry.duration});
    }
  }

  void read_entry(const ManifestJson& json, const DialoguePlace& place, DialogueEntry& entry) {
    entry.id = string_of(json, "id");
    if (entry.id.empty()) entry.id = string_of(json, "audio_filepath");
    if (entry.id.empty()) bad_line("it has no \"id\"");
    if (!ids_.insert(entry.id).second)
      bad_line(fmt::format("another dialogue has the id '{}', too", entry.id));
    const double start = number_of(json, json.contains("audio_filepath") ? "offset" : "start", 0);
    const double duration = number_of(json, "duration", -1);
    check_times(start, duration);
    entry.duration = duration;
    const Sides sides = sides_of(json, roles_, place);
    entry.turns = supervised_turns(json, roles_, entry.place, duration);
    entry.user = cut_of_side(entry, sides.user, sides.user_channel, start, false);
    entry.agent = cut_of_side(entry, sides.agent, sides.agent_channel, start, true);
  }

  const DialogueRoles& roles_;
  DialogueManifest& manifest_;
  std::set<std::string> ids_;
};

constexpr const char* kRoleForm = "\"user=NAME,agent=NAME\"; several names of one as NAME|NAME";

}  // namespace

DialogueRoles DialogueRoles::parse(const std::string& text) {
  DialogueRoles roles;
  roles.user.clear();
  roles.agent.clear();
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string role(trim(part.substr(0, equals)));
    if (equals == std::string::npos || (role != "user" && role != "agent"))
      throw DeckError(fmt::format("'{}' is not a role", part), kRoleForm);
    auto& names = role == "user" ? roles.user : roles.agent;
    for (const std::string& name : split(part.substr(equals + 1), '|'))
      if (const std::string tidy(trim(name)); !tidy.empty()) names.push_back(tidy);
  }
  if (roles.user.empty() || roles.agent.empty())
    throw DeckError(fmt::format("'{}' does not name both user and agent", text), kRoleForm);
  for (const std::string& name : roles.user)
    if (contains(roles.agent, name))
      throw DeckError(fmt::format("'{}' cannot be both user and agent", name), kRoleForm);
  return roles;
}

bool DialogueRoles::is_agent(const std::string& speaker, const std::string& place) const {
  if (contains(agent, speaker)) return true;
  if (contains(user, speaker)) return false;
  throw DataError(fmt::format("{}: speaker '{}' is neither user ({}) nor agent ({})", place,
                              speaker, join(user, ", "), join(agent, ", ")),
                  fmt::format("assign a role: --roles {}", kRoleForm));
}

bool is_shar(const std::string& folder) {
  return fs::is_directory(folder) && !shar_parts(folder).empty();
}

DialogueManifest read_dialogues(const std::vector<std::string>& paths, const DialogueRoles& roles) {
  DialogueManifest manifest;
  DialogueReader reader(roles, manifest);
  for (const std::string& path : paths) reader.read(path);
  return manifest;
}

std::vector<DialogueTurn> turns_of_line(const std::string& line, const std::string& place) {
  const auto json = read_json_line(line, place);
  const auto broken = [&]() -> DataError {
    return DataError(fmt::format("{}: no turns of a dialogue", place),
                     "pack it again with `choir prepare dialogues`");
  };
  if (!json.is_object() || !json.contains("turns") || !json["turns"].is_array()) throw broken();
  std::vector<DialogueTurn> turns;
  try {
    for (const auto& turn : json["turns"]) turns.push_back(turn_of(turn));
  } catch (const nlohmann::json::exception&) {
    throw broken();
  }
  return turns;
}

}  // namespace choir
