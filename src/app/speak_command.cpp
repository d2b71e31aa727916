// choir speak CODEC_RUN FILE ... --out OUT [--save-codes OUT.npy] | --codes FILE.npy --out OUT
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/transcripts.hpp"
#include "src/models/codec/speaker.hpp"

namespace choir {
namespace {

struct SpeakRequest {
  CodecRunRequest run;
  Arguments files;
  std::string codes, out, save_codes;
  SpeakOptions options;
  std::string on_bad = "stop";
  bool json = false;
};

/// The output files: `out` itself, or OUT/FILE with this extension for each file if `out` is a
/// folder or there are several files.
std::vector<std::string> targets_of(const Arguments& files, const std::string& out,
                                    const char* extension) {
  if (files.size() == 1 && !std::filesystem::is_directory(out)) return {out};
  std::filesystem::create_directories(out);
  std::set<std::string> taken;
  std::vector<std::string> targets;
  for (const std::string& file : files) {
    targets.push_back(out + "/" + std::filesystem::path(file).stem().string() + extension);
    if (!taken.insert(targets.back()).second)
      throw DeckError(fmt::format("two files would both be written to '{}'", targets.back()),
                      "process them separately, with two --out folders");
  }
  return targets;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string json_of(const Spoken& s) {
  nlohmann::ordered_json json;
  json["from"] = s.from, json["to"] = s.to;
  if (!s.codes_to.empty()) json["codes"] = s.codes_to;
  json["seconds"] = s.seconds, json["frames"] = s.frames;
  if (s.mel.features > 0) {
    json["l1_sum"] = s.mel.sum, json["features"] = s.mel.features;
    json["l1_db"] = s.mel.decibels();
    json["sound_l1_db"] = s.sounding.decibels();
    json["stoi"] = s.stoi ? nlohmann::ordered_json(*s.stoi) : nlohmann::ordered_json();
  }
  json["x_real_time"] = s.worked > 0 ? s.seconds / s.worked : 0.0;
  if (!s.frame_ms.empty()) {
    json["frame_ms"] = mean_of(s.frame_ms);
    json["worst_frame_ms"] = *std::max_element(s.frame_ms.begin(), s.frame_ms.end());
    json["delay_ms"] = s.delay_ms;
  }
  return dumped_safely(json);
}

std::string line_of(const nlohmann::ordered_json& s) {
  const auto number = [&](const char* key) { return s.at(key).get<double>(); };
  std::string line = fmt::format("{} -> {}: {:.2f} s, {}", s.at("from").get<std::string>(),
                                 s.at("to").get<std::string>(), number("seconds"),
                                 counted(s.at("frames").get<std::int64_t>(), "frame"));
  if (s.contains("codes")) line += fmt::format(" in {}", s.at("codes").get<std::string>());
  if (s.contains("l1_db"))
    line +=
        fmt::format(", L1 {:.2f} dB ({:.2f} of the sound)", number("l1_db"), number("sound_l1_db"));
  if (s.contains("stoi") && !s.at("stoi").is_null())
    line += fmt::format(", STOI {:.3f}", number("stoi"));
  if (s.contains("frame_ms"))
    line += fmt::format(", {:.2f} ms a frame (worst {:.2f}), heard after {:.0f} ms",
                        number("frame_ms"), number("worst_frame_ms"), number("delay_ms"));
  return line + fmt::format(", {:.0f} x real time\n", number("x_real_time"));
}

/// The line of a recording that is left out.
std::string left_out_json(const std::string& file, const std::string& fault) {
  nlohmann::ordered_json json;
  json["from"] = file, json["error"] = fault;
  return dumped_safely(json);
}

/// The summary of all recordings: L1 over all features, STOI over recordings.
std::string summary_of(const std::vector<nlohmann::ordered_json>& all) {
  double sum = 0, sounding = 0, features = 0, stoi = 0, seconds = 0;
  std::int64_t judged = 0, skipped = 0;
  for (const auto& one : all) {
    if (one.contains("error")) {
      ++skipped;
      continue;
    }
    seconds += one.at("seconds").get<double>();
    if (!one.contains("l1_sum")) continue;
    const double here = one.at("features").get<double>();
    sum += one.at("l1_sum").get<double>(), features += here;
    sounding += one.at("sound_l1_db").get<double>() * here;
    if (one.at("stoi").is_null()) continue;
    stoi += one.at("stoi").get<double>(), ++judged;
  }
  return fmt::format("{}, {}: L1 {:.2f} dB ({:.2f} of the sound), STOI {:.3f}{}\n",
                     counted(std::ssize(all) - skipped, "recording"), format_duration(seconds),
                     features > 0 ? 4.342944819 * sum / features : 0.0,
                     features > 0 ? sounding / features : 0.0,
                     judged > 0 ? stoi / static_cast<double>(judged) : 0.0,
                     skipped > 0 ? fmt::format("; {} skipped", skipped) : "");
}

/// The JSON lines of recordings, by their index.
using SpokenLines = std::vector<std::pair<std::size_t, std::string>>;

/// Returns one JSON line per recording, in their order, on rank 0.
std::vector<std::string> gather_spoken(Communicator& world, const SpokenLines& mine) {
  std::string lines;
  for (const auto& [i, line] : mine) lines += fmt::format("{} {}\n", i, line);
  std::map<std::size_t, std::string> ordered;
  for (const std::string& part : gather_texts(world, lines))
    for (const std::string& line : split(part, '\n'))
      if (!line.empty()) ordered[std::stoul(line)] = line.substr(line.find(' ') + 1);
  std::vector<std::string> all;
  for (auto& [i, line] : ordered) all.push_back(std::move(line));
  return all;
}

struct RequestFault {
  std::string what, cure;  ///< "" if the request is in order
};

RequestFault fault_of(const SpeakRequest& request) {
  const bool both = !request.save_codes.empty() && !request.codes.empty();
  if (request.files.empty() == request.codes.empty() || both)
    return {both ? "--save-codes writes the codes of recordings, and --codes has them"
                 : "give either sound files or --codes",
            "choir speak RUN a.wav --out b.wav"};
  const std::filesystem::path out(request.out);
  if (std::error_code ignored; std::filesystem::is_directory(out, ignored)) return {};
  const std::string extension = out.extension().string();
  const bool several = request.files.size() > 1;
  if (several && is_sound_file(request.out))
    return {fmt::format("--out {} is the name of one file, and there are {} recordings",
                        request.out, request.files.size()),
            fmt::format("name a folder: --out {}", (out.parent_path() / out.stem()).string())};
  if (!several && !extension.empty() && extension != ".wav" && extension != ".WAV")
    return {fmt::format("--out {}: sound is written as WAV only", request.out),
            fmt::format("--out {}", std::filesystem::path(out).replace_extension(".wav").string())};
  return {};
}

/// Speaks the recordings of this rank. Those that cannot be read are refused together, or left out.
SpokenLines speak_recordings(Communicator& world, const SpeakRequest& request, CodecCoder& coder) {
  const bool skip = request.on_bad == "skip";
  std::vector<TranscriptRequest> requests;
  std::vector<std::string> targets, codes;
  together(world, [&] {
    targets = targets_of(request.files, request.out, ".wav");
    codes.resize(targets.size());
    if (!request.save_codes.empty()) codes = targets_of(request.files, request.save_codes, ".npy");
    for (const std::string& file : request.files) {
      TranscriptRequest& one = requests.emplace_back();
      one.place = one.source.path = file;
      one.source.channel = channel_choice_of(request.options.channel);
    }
  });
  const auto surveys = survey_recordings(world, requests, coder.sample_rate());
  SpokenLines mine;
  together(world, [&] {
    require_readable(requests, surveys, skip);
    Speaker speaker(request.options, coder);
    for (auto i = static_cast<std::size_t>(world.rank()); i < targets.size();
         i += static_cast<std::size_t>(world.size())) {
      const std::string& file = request.files[i];
      if (!surveys[i].fault.empty()) {
        mine.emplace_back(i, left_out_json(file, surveys[i].fault));
        continue;
      }
      try {
        mine.emplace_back(i, json_of(speaker.recording(file, targets[i], codes[i])));
      } catch (const AudioError& error) {
        if (!skip) throw;
        mine.emplace_back(
            i, left_out_json(file, fmt::format("{}: {}", name_of(error.fault()), error.what())));
      }
    }
  });
  return mine;
}

int speak(MpiSession& session, const SpeakRequest& request) {
  CodecRun run(session, request.run);
  Communicator& world = run.world();
  SpokenLines mine;
  if (request.codes.empty())
    mine = speak_recordings(world, request, run.coder());
  else
    together(world, [&] {
      Speaker speaker(request.options, run.coder());
      if (world.rank() == 0)
        mine.emplace_back(0, json_of(speaker.codes(request.codes, request.out)));
    });
  const std::vector<std::string> lines = gather_spoken(world, mine);
  std::vector<nlohmann::ordered_json> all;
  for (const std::string& line : lines) {
    const auto& one = all.emplace_back(parsed_ordered_json(line));
    const bool spoken = !one.contains("error");
    if (!spoken)
      print_safely(stderr, "choir: {}: left out: {}\n",
                   printable_name(one.at("from").get<std::string>()),
                   printable_name(one.at("error").get<std::string>()));
    if (request.json || spoken) print_safely("{}", request.json ? line + "\n" : line_of(one));
  }
  if (all.size() > 1) print_safely(request.json ? stderr : stdout, "{}", summary_of(all));
  return 0;
}

void add_speak_options(CommandLine& app, SpeakRequest& r) {
  add_codec_run(app, r.run);
  app.add_option(
      "files", r.files,
      "sound files (WAV, FLAC, MP3, Ogg, Opus, AIFF, AU, CAF, W64) of any sample rate and length");
  app.add_option("--out", r.out,
                 "WAV file to write; for several recordings, folder that gets a FILE.wav for each")
      .required();
  app.add_option("--codes", r.codes,
                 "decode these codes instead: a NumPy array [frames, codebooks]");
  app.add_option("--save-codes", r.save_codes,
                 "also write the codes of the recording, for --codes and numpy.load: an array "
                 "[frames, codebooks]; for several recordings, folder that gets a FILE.npy for "
                 "each");
  app.add_flag("--stream", r.options.stream,
               "process frame by frame, as from a microphone to a loudspeaker; prints the time per "
               "frame and the delay");
  app.add_flag("--json", r.json,
               "one JSON line per recording: L1 in dB of the features decoded (l1_db) and of the "
               "sound (sound_l1_db), STOI, x real time");
  app.add_option("--channel", r.options.channel,
                 "channel of recordings with several: average, or a number from 0");
  app.add_option("--on-bad", r.on_bad,
                 "stop: refuse recordings that cannot be read and name them (exit code 3); skip: "
                 "leave them out and list them")
      .one_of({"stop", "skip"})
      .shows_default();
}

}  // namespace

int speak_command(const Invocation& call) {
  CommandLine app(
      "Encodes recordings with a codec (a run of model.type = \"codec\", or a checkpoint) and "
      "decodes the codes to sound again. The recordings are divided among the ranks.",
      "choir speak");
  SpeakRequest request{.run = {.families = call.families}};
  add_speak_options(app, request);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    if (const RequestFault fault = fault_of(request); !fault.what.empty()) {
      DeckError error(fault.what, fault.cure);
      error.set_agreed_ranks(session.size());
      throw error;
    }
    return speak(session, request);
  });
}

}  // namespace choir
