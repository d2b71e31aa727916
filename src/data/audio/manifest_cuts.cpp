// Cuts of Lhotse manifests.
#include <algorithm>
#include <cmath>

#include "src/data/audio/manifest_lines.hpp"

namespace choir {
namespace {

void refuse_other_kinds(const ManifestJson& cut) {
  std::string type = string_of(cut, "type");
  if (type.empty() && cut.contains("tracks")) type = "MixedCut";
  if (type.empty() || type == "MonoCut") return;
  throw AudioError(AudioFault::refused, fmt::format("it is a {}; only MonoCut is supported", type),
                   "save mixtures and multi-channel cuts as MonoCuts with Lhotse first");
}

// Finds the file with the channel of the cut, and the index of that channel in the file.
void find_source(const ManifestJson& recording, const std::string& folder, AudioEntry& entry) {
  const auto sources = recording.find("sources");
  if (sources == recording.end() || !sources->is_array() || sources->empty())
    bad_line("its recording has no \"sources\"");
  for (const auto& source : *sources) {
    if (!source.is_object()) bad_line("a source of its recording is not an object");
    int index = entry.channel;
    if (const auto channels = source.find("channels");
        channels != source.end() && channels->is_array() && entry.channel >= 0) {
      const auto at = std::find(channels->begin(), channels->end(), entry.channel);
      if (at == channels->end()) continue;
      index = static_cast<int>(at - channels->begin());
    }
    const std::string type = string_of(source, "type");
    // A Shar source that names its tar, as in manifests of dialogues.
    if (const std::string tar = string_of(source, "source"); type == "shar" && !tar.empty()) {
      entry.path = tar;
      entry.member = entry.id;
      entry.by_stem = true;
      entry.channel = index;
      entry.rate = 0, entry.frames = 0;  // not checked: a placeholder has those of the cut
      return;
    }
    if (type != "file")
      throw AudioError(
          AudioFault::refused, fmt::format("its recording comes from a source of type '{}'", type),
          type == "shar" ? "name the Shar folder rather than its cuts"
                         : "only files are read; commands are not run and URLs are not fetched");
    entry.path = resolve_audio_path(folder, string_of(source, "source"));
    entry.channel = index;
    return;
  }
  throw AudioError(AudioFault::channels,
                   fmt::format("its recording has no channel {}", entry.channel));
}

void find_audio(const ManifestJson& cut, const ManifestPlace& place, AudioEntry& entry) {
  if (cut.contains("channel") && cut["channel"].is_array())
    throw AudioError(AudioFault::refused, "it has several channels; only MonoCut is supported");
  entry.channel = small_of(cut, "channel", -1);
  if (!place.shar.empty()) {
    entry.path = place.shar;
    entry.member = entry.id;
    entry.by_stem = true;
    entry.occurrence = place.occurrence;
    return;
  }
  const auto recording = cut.find("recording");
  if (recording == cut.end() || !recording->is_object()) bad_line("it has no \"recording\"");
  if (const auto transforms = recording->find("transforms");
      transforms != recording->end() && !transforms->is_null() && !transforms->empty())
    throw AudioError(AudioFault::refused, "its recording has transforms",
                     "save the transformed audio with Lhotse first");
  entry.rate = small_of(*recording, "sampling_rate", 0);
  entry.frames = integer_of(*recording, "num_samples", 0);
  find_source(*recording, place.folder, entry);
}

std::vector<ManifestJson> supervisions_of(const ManifestJson& cut) {
  std::vector<ManifestJson> all;
  const auto list = cut.find("supervisions");
  if (list == cut.end() || list->is_null()) return all;
  if (!list->is_array()) bad_line("\"supervisions\" is not a list");
  for (const auto& supervision : *list) {
    if (!supervision.is_object()) bad_line("a supervision is not an object");
    all.push_back(supervision);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return number_of(a, "start", 0) < number_of(b, "start", 0);
  });
  return all;
}

std::string first_string(const std::vector<ManifestJson>& supervisions, const char* key) {
  for (const auto& supervision : supervisions)
    if (std::string value = string_of(supervision, key); !value.empty()) return value;
  return {};
}

void add_joined(AudioEntry entry, const std::vector<ManifestJson>& supervisions, ManifestJson rest,
                AudioManifest& manifest) {
  std::string text;
  for (const auto& supervision : supervisions) {
    const std::string part = string_of(supervision, "text");
    if (!text.empty() && !part.empty()) text += ' ';
    text += part;
  }
  if (const std::string speaker = first_string(supervisions, "speaker"); !speaker.empty())
    rest["speaker"] = speaker;
  if (!supervisions.empty()) rest["supervisions"] = supervisions;
  describe_entry(entry, text, first_string(supervisions, "language"), rest, manifest);
  manifest.entries.push_back(std::move(entry));
}

// Adds an utterance for each supervision: the part of it that lies within the cut.
void add_trimmed(const AudioEntry& cut, const std::vector<ManifestJson>& supervisions,
                 const ManifestJson& rest, AudioManifest& manifest) {
  if (supervisions.empty()) {
    manifest.left_out.push_back({.place = cut.place,
                                 .id = cut.id,
                                 .reason = "no supervision",
                                 .detail = "there is nothing to trim the cut to",
                                 .hint = {},
                                 .duration = cut.duration,
                                 .bad = false});
    return;
  }
  std::vector<AudioEntry> made;
  for (std::size_t i = 0; i < supervisions.size(); ++i) {
    const double start = number_of(supervisions[i], "start", 0);
    const double begin = std::max(0.0, start);
    const double end = std::min(cut.duration, start + number_of(supervisions[i], "duration", -1));
    if (!(end > begin)) bad_line(fmt::format("supervision {} does not lie within the cut", i));
    AudioEntry entry = cut;
    entry.id = fmt::format("{}-{}", cut.id, i);
    entry.offset = cut.offset + begin;
    entry.duration = end - begin;
    made.push_back(std::move(entry));
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    ManifestJson own = supervisions[i];
    own["start"] = number_of(own, "start", 0) - (made[i].offset - cut.offset);
    add_joined(made[i], {own}, rest, manifest);
  }
}

}  // namespace

void add_cut(const ManifestJson& cut, const ManifestPlace& place, bool trim,
             AudioManifest& manifest) {
  AudioEntry entry;
  entry.place = place.place;
  entry.id = string_of(cut, "id");
  if (entry.id.empty()) bad_line("it has no \"id\"");
  refuse_other_kinds(cut);
  entry.offset = number_of(cut, "start", 0);
  entry.duration = number_of(cut, "duration", -1);
  check_times(entry.offset, entry.duration);
  find_audio(cut, place, entry);
  ManifestJson rest;
  for (const auto& [key, value] : cut.items()) {
    const bool said = key == "id" || key == "duration" || key == "supervisions" ||
                      key == "recording" || key == "features" || key == "type";
    if (!said) rest[key] = value;
  }
  const auto supervisions = supervisions_of(cut);
  if (trim)
    add_trimmed(entry, supervisions, rest, manifest);
  else
    add_joined(std::move(entry), supervisions, std::move(rest), manifest);
}

}  // namespace choir
