#include "src/data/audio/transcripts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_array_reader.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/recording_list.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

/// Rounds seconds to whole milliseconds, for messages and files.
double milliseconds(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

ManifestJson words_of(const Transcript& transcript) {
  ManifestJson words = ManifestJson::array();
  for (const SpokenWord& word : transcript.words)
    words.push_back({{"word", word.text},
                     {"start", milliseconds(word.start)},
                     {"end", milliseconds(word.end)}});
  return words;
}

/// Adds the times of chunks, rounded to microseconds.
void add_chunks(ManifestJson& json, const Transcript& transcript) {
  if (transcript.chunk_seconds.empty()) return;
  ManifestJson& list = json["chunk_ms"] = ManifestJson::array();
  for (const double seconds : transcript.chunk_seconds)
    list.push_back(std::round(seconds * 1e6) / 1e3);
}

void add_remarks(ManifestJson& json, const Transcript& transcript) {
  if (!transcript.fault.empty()) json["error"] = transcript.fault;
  if (!transcript.note.empty()) json["note"] = transcript.note;
}

/// Dumps JSON with text that may not be valid UTF-8.
std::string dump(const ManifestJson& json) {
  return dumped_safely(json);
}

/// A cut of Lhotse. Its text is that of its supervisions.
void read_cut(const ManifestJson& cut, const std::string& folder, TranscriptRequest& request) {
  AudioManifest manifest;
  add_cut(cut, {.folder = folder, .place = request.place}, false, manifest);
  const AudioEntry& entry = manifest.entries.front();
  if (!entry.member.empty())
    throw AudioError(AudioFault::refused, "its recording is in a tar",
                     "save the recordings as files with Lhotse first");
  request.source.path = entry.path;
  request.source.offset = entry.offset;
  request.source.duration = entry.duration;
  if (entry.channel >= 0) request.source.channel.value = entry.channel;
  if (const auto text = string_of(manifest_json(entry.line(entry.duration)), "text"); !text.empty())
    request.text = text;
}

void read_line(const std::string& folder, TranscriptRequest& request) {
  const ManifestJson json = manifest_json(request.line);
  if (!json.is_object())
    throw AudioError(AudioFault::not_json,
                     fmt::format("'{}' is not a JSON object", request.line.substr(0, 40)));
  if (is_cut(json)) return read_cut(json, folder, request);
  const std::string file = string_of(json, "audio_filepath");
  if (file.empty())
    throw AudioError(AudioFault::bad_line, "it has no \"audio_filepath\"",
                     advice_on_manifest_line(json));
  request.source.path = resolve_audio_path(folder, file);
  std::error_code ignored;
  if (json.contains("shard_id") &&
      !std::filesystem::exists(file_of_recording(request.source.path), ignored))
    throw AudioError(AudioFault::missing_file,
                     fmt::format("'{}' is a member of a tar (its line has a shard_id)", file),
                     "unpack the tars beside the manifest (tar xf), then it is found there");
  request.source.offset = number_of(json, "offset", 0);
  const bool timed = json.contains("duration") && !json["duration"].is_null();
  request.source.duration = timed ? number_of(json, "duration", 0) : -1;
  check_times(request.source.offset, timed ? request.source.duration : 1);
  request.source.channel.value = small_of(json, "channel", request.source.channel.value);
  if (json.contains("text") && !json["text"].is_null()) request.text = string_of(json, "text");
  if (!json.contains("text")) request.text_key = other_text_key(json);
}

}  // namespace

std::vector<TranscriptRequest> read_transcript_manifest(const std::string& path,
                                                        ChannelChoice channel) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::vector<TranscriptRequest> requests;
  refuse_tarred(path);
  if (const std::string advice = advice_on_recordings(path); !advice.empty())
    throw DataError(fmt::format("'{}' is not a manifest", path), advice);
  const std::string text =
      path.ends_with(".gz") ? read_lines(path) : read_whole_file(path, kMostListMiB);
  TextRows rows(text, path);
  for (std::string line; rows.next(line);) {
    if (trim(line).empty()) continue;
    TranscriptRequest& request = requests.emplace_back();
    request.source.channel = channel;
    request.place = fmt::format("{}:{}", path, rows.number());
    request.line = trim(line);
    try {
      read_line(folder, request);
    } catch (const AudioError& error) {
      request.fault = error;
    }
  }
  if (requests.empty())
    throw DataError(fmt::format("'{}' has no line", path),
                    "a line has the form {\"audio_filepath\": ...}, as in NeMo");
  return requests;
}

std::string transcript_line(const TranscriptRequest& request, const Transcript& transcript) {
  ManifestJson json;
  try {
    if (!request.line.empty()) json = manifest_json(request.line);
  } catch (const AudioError&) {
    json = nullptr;  // the output repeats the line as text
  }
  if (!json.is_object()) {
    json = ManifestJson::object();
    if (request.line.empty()) {
      json["audio_filepath"] = request.source.path;
      json["duration"] = milliseconds(transcript.seconds);
    } else {
      json["line"] = request.line;
    }
  }
  json["pred_text"] = transcript.text;
  json["words"] = words_of(transcript);
  add_remarks(json, transcript);
  return dump(json);
}

std::string transcript_json(const TranscriptRequest& request, const Transcript& transcript) {
  ManifestJson json;
  json["audio_filepath"] = request.source.path;
  json["text"] = transcript.text;
  json["words"] = words_of(transcript);
  json["duration"] = milliseconds(transcript.seconds);
  add_chunks(json, transcript);
  add_remarks(json, transcript);
  return dump(json);
}

std::string serialise(const Transcript& transcript) {
  ManifestJson words = ManifestJson::array();
  for (const SpokenWord& word : transcript.words)
    words.push_back({word.text, word.start, word.end});
  return dump({transcript.text, words, transcript.seconds, transcript.fault, transcript.note,
               transcript.chunk_seconds});
}

Transcript transcript_of(const std::string& bytes) {
  const ManifestJson json = parsed_ordered_json(bytes);
  Transcript transcript;
  json.at(0).get_to(transcript.text);
  for (const ManifestJson& word : json.at(1))
    transcript.words.push_back(
        {word.at(0).get<std::string>(), word.at(1).get<double>(), word.at(2).get<double>()});
  json.at(2).get_to(transcript.seconds);
  json.at(3).get_to(transcript.fault);
  json.at(4).get_to(transcript.note);
  json.at(5).get_to(transcript.chunk_seconds);
  return transcript;
}

std::vector<RecordingSurvey> survey_recordings(Communicator& world,
                                               const std::vector<TranscriptRequest>& requests,
                                               int rate) {
  std::string mine;
  for (std::size_t i = static_cast<std::size_t>(world.rank()); i < requests.size();
       i += static_cast<std::size_t>(world.size())) {
    Transcript opened;  // reuses its serialisation
    try {
      if (requests[i].fault) throw AudioError(*requests[i].fault);
      opened.seconds = Recording::open(requests[i].source, rate).seconds();
    } catch (const AudioError& error) {
      opened.fault = fmt::format("{}: {}", name_of(error.fault()), error.what());
      opened.note = error.hint();
    }
    mine += fmt::format("{} {}\n", i, serialise(opened));
  }
  std::string all;
  for (const std::string& text : gather_texts(world, mine)) all += text;
  std::uint64_t bytes = all.size();
  world.broadcast(&bytes, sizeof bytes, 0);
  all.resize(bytes);
  world.broadcast(all.data(), bytes, 0);
  std::vector<RecordingSurvey> surveys(requests.size());
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t space = all.find(' ', at), end = all.find('\n', at);
    const Transcript opened = transcript_of(all.substr(space + 1, end - space - 1));
    surveys[std::stoul(all.substr(at, space - at))] = {opened.seconds, opened.fault, opened.note};
    at = end + 1;
  }
  return surveys;
}

void require_readable(const std::vector<TranscriptRequest>& requests,
                      const std::vector<RecordingSurvey>& surveys, bool skip) {
  BadList bad;
  for (std::size_t i = 0; i < surveys.size(); ++i)
    if (!surveys[i].fault.empty()) bad.add(requests[i].place, surveys[i].fault, surveys[i].hint);
  const bool all = bad.count() == std::ssize(surveys);
  if (bad.count() == 0 || (skip && !all)) return;
  const bool alone = std::ssize(surveys) == 1 && !skip;
  bad.refuse(std::ssize(surveys), "recording", !all ? kSkipsBad : alone ? "" : "nothing remains");
}

std::vector<std::size_t> share_of(const std::vector<RecordingSurvey>& surveys, int rank,
                                  int ranks) {
  std::vector<std::size_t> order(surveys.size()), mine;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return surveys[a].seconds > surveys[b].seconds;
  });
  std::vector<double> load(static_cast<std::size_t>(ranks));
  for (const std::size_t i : order) {
    if (!surveys[i].fault.empty()) continue;
    const auto least = std::min_element(load.begin(), load.end());
    *least += surveys[i].seconds;
    if (least - load.begin() == rank) mine.push_back(i);
  }
  return mine;
}

std::vector<Transcript> gather_transcripts(Mesh& mesh, const std::vector<std::size_t>& mine,
                                           const std::vector<Transcript>& made,
                                           const std::vector<RecordingSurvey>& surveys) {
  std::string text;
  const Coordinates& at = mesh.coordinates();
  if (at[Axis::tensor] == 0)
    for (std::size_t i = 0; i < mine.size(); ++i)
      text += fmt::format("{} {}\n", mine[i], serialise(made[i]));
  std::vector<Transcript> all(surveys.size());
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    all[i].fault = surveys[i].fault;
    all[i].note = surveys[i].hint;
  }
  for (const std::string& part : gather_texts(mesh.world(), text))
    for (std::size_t from = 0; from < part.size();) {
      const std::size_t space = part.find(' ', from), end = part.find('\n', from);
      all[std::stoul(part.substr(from, space - from))] =
          transcript_of(part.substr(space + 1, end - space - 1));
      from = end + 1;
    }
  return all;
}

}  // namespace choir
