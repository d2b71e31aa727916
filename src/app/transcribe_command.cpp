// choir transcribe CHECKPOINT AUDIO ... | --manifest IN [--out OUT]
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "choir/core/log.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/transcripts.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/report/transcripts.hpp"
#include "src/run/loaded_model.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

struct LoadedSpeechModel : LoadedModel {
  std::optional<Vocabulary> units;  ///< of the checkpoint; always set after loading
  TranscriptionPlan plan;
  StreamPlan stream;  ///< for streams, instead of `plan`
};

struct SpeechModelRequest {
  const FamilyTable& families;
  std::string checkpoint, precision, device = "auto";
  int tensor = 1;
  bool stream = false;  ///< process chunk by chunk; refused if the model cannot
  bool ema = false;
  TranscriptionOptions transcription;
};

struct TranscribeRequest {
  SpeechModelRequest model;
  Arguments files;
  std::string manifest, out, channel, on_bad = "stop";
  double memory_gib = 0;
  bool json = false, partial = false;
  bool skips() const { return on_bad == "skip"; }
  /// True if the lines of the manifest go to the standard output.
  bool prints_lines() const { return !manifest.empty() && out.empty() && !json; }
  /// True if the standard output has JSON only.
  bool only_json() const { return json || prints_lines(); }
};

/// The layout of the training does not apply to inference.
Arguments overrides_of(const SpeechModelRequest& request) {
  return with_ema({"device=" + request.device, fmt::format("parallel.tensor={}", request.tensor),
                   "parallel.pipeline=1", "parallel.virtual_stages=1", "parallel.schedule=1f1b",
                   "parallel.data=auto", "parallel.sequence=false"},
                  request.ema);
}

Vocabulary vocabulary_of(const LoadedModel& loaded) {
  const std::string& path = loaded.checkpoint.path;
  if (loaded.vocabulary.empty())
    throw DataError(path + " has no units of text: it was trained without a tokenizer",
                    "train with data whose labels `choir prepare tokens` made");
  Vocabulary vocabulary = Vocabulary::from_json(loaded.vocabulary, path);
  const std::int64_t symbols = model_of(loaded.deck).vocab_size();
  if (vocabulary.size() != symbols)
    throw DataError(fmt::format("{}: its model has {} units of text, its tokenizer {}", path,
                                symbols, vocabulary.size()),
                    "the checkpoint mixes parts of two models");
  return vocabulary;
}

/// Throws DeckError with the keys that prevent the checkpoint from transcribing streams.
void require_streaming(const FastConformerConfig& config, const std::string& checkpoint) {
  const auto keys = keys_against_streaming(config);
  if (keys.empty()) return;
  throw DeckError(
      fmt::format("--stream: {} can only transcribe whole recordings: {}", checkpoint,
                  join(keys, ", ")),
      "leave --stream out, or train with model.causal = true, model.context_style = \"chunked\", "
      "model.left_context and model.right_context of 0 or more, model.normalise = false and "
      "model.conv_norm = "
      "\"layernorm\", as inputs/asr_streaming.json does");
}

/// Throws DeckError for a checkpoint that is not a speech model, and DataError for one without
/// units of text. Collective.
LoadedSpeechModel load_speech_model(const SpeechModelRequest& request, Workplace& place) {
  Mesh& mesh = *place.mesh;
  LoadedSpeechModel loaded{open_model(request.families, request.checkpoint, request.precision, mesh,
                                      overrides_of(request))};
  together(mesh.world(), [&] {
    require_ability(loaded, loaded.deck.family().transcribes(), "does not transcribe",
                    "fastconformer");
    loaded.units = vocabulary_of(loaded);
    if (request.stream)
      require_streaming(inference_options(loaded).model.as<FastConformerConfig>(),
                        loaded.checkpoint.path);
  });
  open_device(place, loaded.deck);
  // Every rank must cut recordings alike, whatever the memory of its machine.
  double budget = request.transcription.memory > 0
                      ? request.transcription.memory
                      : default_transcription_memory(*place.device, mesh.node().size());
  mesh.world().all_reduce(&budget, 1, DType::f64, ReduceOp::min);
  if (request.stream) {
    together(mesh.world(), [&] {
      loaded.stream = plan_stream(inference_options(loaded), mesh.layout(), mesh.rank(), budget,
                                  place.device.get());
    });
    make_instance(loaded, loaded.stream.arena_bytes, place);
    loaded.instance->arena().set_requests(loaded.stream.requests);
    return loaded;
  }
  together(mesh.world(), [&] {
    loaded.plan = plan_transcription(inference_options(loaded), mesh.layout(), mesh.rank(),
                                     request.transcription, budget, place.device.get());
  });
  require_equal(mesh.world(), static_cast<std::uint64_t>(loaded.plan.windows.frames),
                "windows that recordings are cut into");
  make_instance(loaded, loaded.plan.arena_bytes, place);
  return loaded;
}

/// Advice on a setting NAME=VALUE, as in scripts of NeMo.
std::string advice_on_setting(const std::string& name) {
  if (name == "dataset_manifest" || name == "manifest" || name == "manifest_filepath")
    return "--manifest FILE names a manifest";
  if (name == "audio_dir") return "name the sound files: DIR/*.wav";
  if (name == "output_filename") return "--out FILE names the file of the results";
  if (name == "model_path" || name == "pretrained_name")
    return "the run or checkpoint is the first argument: choir transcribe RUN a.wav";
  return "choir transcribe --help lists the options";
}

std::vector<TranscriptRequest> read_requests(const TranscribeRequest& request) {
  const ChannelChoice channel = channel_choice_of(request.channel);
  if (!request.manifest.empty()) return read_transcript_manifest(request.manifest, channel);
  std::vector<TranscriptRequest> list;
  for (const std::string& file : request.files) {
    if (const std::size_t is = file.find('='); is != std::string::npos && is > 0 &&
                                               !std::filesystem::exists(file.substr(0, is)) &&
                                               !std::filesystem::exists(file))
      throw DeckError(
          fmt::format("'{}' is not a recording, and settings are given as options", file),
          advice_on_setting(file.substr(0, is)));
    if (std::error_code ignored; std::filesystem::is_directory(file, ignored))
      throw DataError(fmt::format("'{}' is a folder", file),
                      fmt::format("name its sound files: {}",
                                  (std::filesystem::path(file) / "*.wav").string()));
    TranscriptRequest& one = list.emplace_back();
    one.place = one.source.path = file;
    one.source.channel = channel;
  }
  return list;
}

/// Prints "FILE: TEXT" to stdout, or JSON lines; with --out the texts are in that file. Recordings
/// that were left out go to stderr.
void print_texts(const TranscribeRequest& request, const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Transcript& t = transcripts[i];
    if (request.json)
      print_safely("{}\n", transcript_json(requests[i], t));
    else if (request.prints_lines())
      print_safely("{}\n", transcript_line(requests[i], t));
    else if (request.manifest.empty() && request.out.empty() && t.fault.empty())
      print_safely("{}: {}\n", printable_name(requests[i].place), printable_name(t.text));
    if (!t.fault.empty())
      print_safely(stderr, "choir: {}: left out: {}\n", printable_name(requests[i].place),
                   printable_name(t.fault));
    if (!t.note.empty())
      print_safely(stderr, "choir: {}: {}\n", printable_name(requests[i].place),
                   printable_name(t.note));
  }
}

/// Prints speed and error rates: to stdout, or to stderr beside JSON lines.
void print_summary(const TranscribeRequest& request, const LoadedSpeechModel& model,
                   const std::vector<TranscriptRequest>& requests,
                   const std::vector<Transcript>& transcripts, double seconds) {
  std::FILE* const to = request.only_json() ? stderr : stdout;
  print_safely(to, "{}", error_rates(requests, transcripts));
  print_safely(to, "{}", unwritable_references(*model.units, request.manifest, requests));
  const FastConformerConfig& config = model.instance->options().model.as<FastConformerConfig>();
  const WindowPlan& windows = model.plan.windows;
  const double frame = config.seconds_per_frame();
  if (request.model.stream)
    print_safely(to, "{}", stream_summary(config, transcripts));
  else if (std::any_of(transcripts.begin(), transcripts.end(), [&](const Transcript& t) {
             return t.seconds > static_cast<double>(windows.frames) * frame;
           })) {
    const double length = static_cast<double>(windows.frames) * frame,
                 wanted = request.model.transcription.window_seconds;
    print_safely(
        to,
        "long recordings are cut into windows of {:.1f} s{}, {:.1f} + {:.1f} s of overlap: {}\n",
        length,
        length < wanted + frame
            ? ""
            : fmt::format(" (the shortest of this model; --window asks for {:g} s)", wanted),
        static_cast<double>(windows.left) * frame, static_cast<double>(windows.right) * frame,
        windows.exact ? "the result is exact" : "no frame sees beyond its window");
  }
  print_safely(to, "{}", speed_of(transcripts, seconds));
}

/// Runs the transcription of some recordings. An error by damage that a survey of the headers does
/// not see gets a hint that says how to continue with the other recordings.
void run_with_advice(const TranscribeRequest& request, const std::function<void()>& work) {
  try {
    work();
  } catch (const DataError& error) {
    const bool others = !request.manifest.empty() || request.files.size() > 1;
    if (!others || request.skips()) throw;
    DataError advised(error.what(), (error.hint().empty() ? "" : error.hint() + "; ") + kSkipsBad);
    advised.set_agreed_ranks(error.agreed_ranks());
    throw advised;
  }
}

std::vector<Transcript> run_transcriber(const TranscribeRequest& request, LoadedSpeechModel& model,
                                        Mesh& mesh, Logger& log,
                                        const std::vector<RecordingSource>& sources, double all) {
  Transcriber transcriber(*model.instance, *model.units, model.plan,
                          request.model.transcription.beam);
  ProgressLine line(log, "transcription");
  double done = 0;
  const auto on_bad = on_bad_of(request.on_bad, "--on-bad");
  std::vector<Transcript> made;
  const auto work = [&] {
    run_with_advice(request, [&] {
      made = transcriber.transcribe(sources, on_bad, [&](double seconds) {
        done += seconds;
        line.at(static_cast<std::int64_t>(std::min(done, all)), static_cast<std::int64_t>(all));
      });
    });
  };
  if (model.instance->storage().sharding().values_sharded())
    work();  // the ranks run in lockstep and agree on errors themselves
  else
    together(mesh.world(), work);
  return made;
}

std::vector<Transcript> run_stream(const TranscribeRequest& request, LoadedSpeechModel& model,
                                   Mesh& mesh, const std::vector<RecordingSource>& sources) {
  StreamTranscriber transcriber(*model.instance, *model.units, request.model.transcription.beam);
  std::vector<std::string> names;
  for (const RecordingSource& source : sources) names.push_back(source.path);
  PartialText partial(std::move(names), mesh.rank() == 0 && !request.only_json(), request.partial);
  const auto on_bad = on_bad_of(request.on_bad, "--on-bad");
  std::vector<Transcript> made;
  const auto work = [&] {
    run_with_advice(request,
                    [&] { made = transcriber.transcribe(sources, on_bad, partial.heard()); });
  };
  if (model.instance->storage().sharding().values_sharded())
    work();
  else
    together(mesh.world(), work);
  return made;
}

int transcribe(MpiSession& session, const TranscribeRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.model.tensor);
  Mesh& mesh = *place.mesh;
  choose_threads(mesh.node());
  Logger log(session.rank() == 0 && !request.only_json());
  log.to_stdout();
  std::vector<TranscriptRequest> requests;
  together(mesh.world(), [&] { requests = read_requests(request); });
  LoadedSpeechModel model = load_speech_model(request.model, place);
  const auto& config = model.instance->options().model.as<FastConformerConfig>();
  const double begin = now_seconds();
  const auto surveys =
      survey_recordings(mesh.world(), requests, static_cast<int>(config.mel.sample_rate));
  together(mesh.world(), [&] { require_readable(requests, surveys, request.skips()); });
  const auto mine =
      share_of(surveys, mesh.coordinates()[Axis::data], mesh.layout().size(Axis::data));
  std::vector<RecordingSource> sources;
  double audio = 0;
  for (const std::size_t i : mine) {
    sources.push_back(requests[i].source);
    audio += surveys[i].seconds;
  }
  const auto made = request.model.stream
                        ? run_stream(request, model, mesh, sources)
                        : run_transcriber(request, model, mesh, log, sources, audio);
  const auto transcripts = gather_transcripts(mesh, mine, made, surveys);
  const double seconds = now_seconds() - begin;
  together(mesh.world(), [&] {
    if (session.rank() != 0) return;
    require_any(requests, transcripts);
    if (!request.out.empty()) write_transcripts(request.out, requests, transcripts);
    print_texts(request, requests, transcripts);
    if (!request.out.empty())
      print_safely(request.json ? stderr : stdout, "written     {}, {}\n", request.out,
                   counted(std::ssize(requests), "recording"));
    print_summary(request, model, requests, transcripts, seconds);
  });
  return 0;
}

void add_options(CommandLine& app, TranscribeRequest& r) {
  app.add_option("checkpoint", r.model.checkpoint, "checkpoint or run directory").required();
  app.add_option(
      "files", r.files,
      "sound files (WAV, FLAC, MP3, Ogg, Opus, AIFF, AU, CAF, W64) of any sample rate and length");
  app.add_option(
      "--manifest", r.manifest,
      "NeMo JSON lines (audio_filepath, and optionally offset, duration, text), or cuts of "
      "Lhotse");
  app.add_option(
      "--out", r.out,
      "file for the results: lines of the manifest, or of the files, with pred_text and word "
      "times; "
      "FILE.ctm (times of words), FILE.trn (for sclite), FILE.srt or FILE.vtt (subtitles of one "
      "recording), or FILE.txt (a text per line)");
  app.add_flag("--json", r.json,
               "print one JSON line per recording: text, words with times, duration");
  TranscriptionOptions& t = r.model.transcription;
  app.add_option("--beam", t.beam, "prefixes of the beam search; default: greedy decoding")
      .within(1, 1024);
  const CommandOption stream =
      app.add_flag("--stream", r.model.stream,
                   "process chunk by chunk, as from a microphone (streaming checkpoints only); the "
                   "text is the same, and the latency and time of chunks are printed");
  app.add_flag(
         "--partial", r.partial,
         "with --stream, print a line per chunk with the text so far; a terminal always shows it")
      .needs(stream);
  app.add_option("--batch", t.batch, "largest number of windows that are processed together")
      .within(1, 4096)
      .excludes(stream)
      .shows_default();
  app.add_option("--memory", r.memory_gib,
                 "memory of a rank on its device in GiB; default: a quarter of the node divided by "
                 "its ranks, or half a card")
      .positive();
  app.add_option("--window", t.window_seconds,
                 "cut recordings that are longer than this, in seconds, into overlapping windows; "
                 "memory may require shorter windows")
      .within(0.1, 1e6)
      .excludes(stream)
      .shows_default();
  app.add_option("--channel", r.channel,
                 "channel of recordings with several: average, or a number from 0");
  app.add_option("--on-bad", r.on_bad,
                 "stop: refuse recordings that cannot be read and name them (exit code 3); skip: "
                 "leave them out and list them")
      .one_of({"stop", "skip"})
      .shows_default();
  add_ema_option(app, r.model.ema);
  app.add_option("--device", r.model.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", r.model.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, r.model.tensor);
}

}  // namespace

int transcribe_command(const Invocation& call) {
  CommandLine app(
      "Transcribes recordings with a speech checkpoint (or the newest one of a run directory). The "
      "recordings are divided among the ranks; the text of each is independent of the others.",
      "choir transcribe");
  TranscribeRequest request{.model = {.families = call.families}};
  add_options(app, request);
  if (const auto code = parse(app, call)) return *code;
  request.model.transcription.memory = request.memory_gib * 1024 * 1024 * 1024;
  return with_mpi([&](MpiSession& session) {
    const auto refuse = [&](bool bad, const char* what, const char* cure) {
      if (!bad) return;
      DeckError error(what, cure);
      error.set_agreed_ranks(session.size());
      throw error;
    };
    refuse(request.files.empty() == request.manifest.empty(),
           "give either sound files or a --manifest", "choir transcribe RUN a.wav b.flac");
    refuse(is_subtitles(request.out) && request.files.size() != 1,
           "--out FILE.srt is for one recording, and so is FILE.vtt",
           "choir transcribe RUN a.wav --out a.srt");
    const auto list = std::ranges::find_if(request.files, [](const std::string& file) {
      if (file.find('=') != std::string::npos) return false;  // see advice_on_setting()
      return file.ends_with(".json") || file.ends_with(".jsonl") || file.ends_with(".jsonl.gz");
    });
    if (list != request.files.end())
      refuse(true, fmt::format("'{}' is not a recording", *list).c_str(),
             fmt::format("it is a manifest: --manifest {}", *list).c_str());
    std::error_code ignored;
    refuse(is_sound_file(request.model.checkpoint) &&
               std::filesystem::is_regular_file(request.model.checkpoint, ignored),
           "the first argument is a recording, and the run or checkpoint comes first",
           "choir transcribe RUN a.wav b.flac");
    try {
      if (!request.out.empty()) require_manifest_place({request.manifest}, request.out);
    } catch (DeckError& error) {
      error.set_agreed_ranks(session.size());
      throw;
    }
    const std::string wrong_name = wrong_transcripts_name(request.out);
    refuse(
        !wrong_name.empty(), wrong_name.c_str(),
        "use .json (lines with the text and the times of words), .ctm, .trn, .srt, .vtt or .txt");
    return transcribe(session, request);
  });
}

}  // namespace choir
