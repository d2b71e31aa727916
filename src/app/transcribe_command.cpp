// choir transcribe CHECKPOINT AUDIO ... | --manifest IN --out OUT
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "choir/app/recording_survey.hpp"
#include "choir/app/speech_session.hpp"
#include "choir/app/stream_transcription.hpp"
#include "choir/app/transcript_report.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/progress_line.hpp"

namespace choir {
namespace {

struct Request {
  SpeechModelRequest model;
  Arguments files;
  std::string manifest, out, channel, on_bad = "stop";
  double memory_gib = 0;
  bool json = false, partial = false;
  bool skips() const { return on_bad == "skip"; }
};

std::vector<TranscriptRequest> read_requests(const Request& request) {
  const ChannelChoice channel = channel_choice_of(request.channel);
  if (!request.manifest.empty()) return read_transcript_manifest(request.manifest, channel);
  std::vector<TranscriptRequest> list;
  for (const std::string& file : request.files) {
    TranscriptRequest& one = list.emplace_back();
    one.place = one.source.path = file;
    one.source.channel = channel;
  }
  return list;
}

/// How it went; beside JSON lines on stdout, on stderr.
void print_summary(const Request& request, const LoadedSpeechModel& model,
                   const std::vector<TranscriptRequest>& requests,
                   const std::vector<Transcript>& transcripts, double seconds) {
  std::FILE* const to = request.json ? stderr : stdout;
  fmt::print(to, "{}", error_rates(requests, transcripts));
  const FastConformerConfig& config = model.instance->options().model.fastconformer();
  const WindowPlan& windows = model.plan.windows;
  const double frame = config.seconds_per_frame();
  if (request.model.stream)
    fmt::print(to, "{}", stream_summary(config, transcripts));
  else if (std::any_of(transcripts.begin(), transcripts.end(), [&](const Transcript& t) {
             return t.seconds > static_cast<double>(windows.frames) * frame;
           }))
    fmt::print(
        to, "long recordings in windows of {:.1f} s, {:.1f} + {:.1f} s of overlap: {}\n",
        static_cast<double>(windows.frames) * frame, static_cast<double>(windows.left) * frame,
        static_cast<double>(windows.right) * frame,
        windows.exact ? "the result is that of the whole" : "no frame sees beyond its window");
  fmt::print(to, "{}", speed_of(transcripts, seconds));
}

std::vector<Transcript> run_transcriber(const Request& request, LoadedSpeechModel& model,
                                        Mesh& mesh, Logger& log,
                                        const std::vector<RecordingSource>& sources, double all) {
  Transcriber transcriber(*model.instance, *model.units, model.plan,
                          request.model.transcription.beam);
  ProgressLine line(log, "transcription");
  double done = 0;
  const auto on_bad = on_bad_of(request.on_bad, "--on-bad");
  std::vector<Transcript> made;
  const auto work = [&] {
    made = transcriber.transcribe(sources, on_bad, [&](double seconds) {
      done += seconds;
      line.at(static_cast<std::int64_t>(std::min(done, all)), static_cast<std::int64_t>(all));
    });
  };
  if (model.instance->storage().sharding().values_sharded())
    work();  // ranks walk together, and agree on the way
  else
    together(mesh.world(), work);
  return made;
}

std::vector<Transcript> run_stream(const Request& request, LoadedSpeechModel& model, Mesh& mesh,
                                   const std::vector<RecordingSource>& sources) {
  StreamTranscriber transcriber(*model.instance, *model.units, request.model.transcription.beam);
  std::vector<std::string> names;
  for (const RecordingSource& source : sources) names.push_back(source.path);
  PartialText partial(std::move(names), mesh.rank() == 0 && !request.json, request.partial);
  const auto on_bad = on_bad_of(request.on_bad, "--on-bad");
  std::vector<Transcript> made;
  const auto work = [&] { made = transcriber.transcribe(sources, on_bad, partial.heard()); };
  if (model.instance->storage().sharding().values_sharded())
    work();
  else
    together(mesh.world(), work);
  return made;
}

int transcribe(MpiSession& session, const Request& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.model.tensor);
  Mesh& mesh = *place.mesh;
  choose_threads(mesh.node());
  Logger log(session.rank() == 0 && !request.json);
  log.to_stdout();
  std::vector<TranscriptRequest> requests;
  together(mesh.world(), [&] { requests = read_requests(request); });
  LoadedSpeechModel model = load_speech_model(request.model, place);
  const auto& config = model.instance->options().model.fastconformer();
  const double begin = now_seconds();
  const auto surveys =
      survey_recordings(mesh.world(), requests, static_cast<int>(config.mel.sample_rate));
  const auto bad = std::find_if(surveys.begin(), surveys.end(),
                                [](const RecordingSurvey& s) { return !s.fault.empty(); });
  together(mesh.world(), [&] {
    const bool all = std::none_of(surveys.begin(), surveys.end(),
                                  [](const RecordingSurvey& s) { return s.fault.empty(); });
    if (bad == surveys.end() || (request.skips() && !all)) return;
    throw DataError(
        fmt::format("{}: {}", requests[static_cast<std::size_t>(bad - surveys.begin())].place,
                    bad->fault),
        (bad->hint.empty() ? "" : bad->hint + "; ") +
            (all ? "nothing remains to transcribe" : "--on-bad skip goes on with the others"));
  });
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
    print_texts(requests, transcripts, request.json, request.manifest.empty());
    print_summary(request, model, requests, transcripts, seconds);
  });
  return 0;
}

void add_options(CommandLine& app, Request& r) {
  app.add_option("checkpoint", r.model.checkpoint, "checkpoint or run directory").required();
  app.add_option("files", r.files, "sound files: WAV, FLAC, OGG, of any rate and length");
  app.add_option("--manifest", r.manifest,
                 "NeMo's JSON lines: audio_filepath, and where given offset, duration, text");
  app.add_option("--out", r.out, "the lines again, with pred_text and the times of words");
  app.add_flag("--json", r.json, "a JSON line a recording: text, words with times, duration");
  TranscriptionOptions& t = r.model.transcription;
  app.add_option("--beam", t.beam, "prefixes of the beam search; without: the best of each frame")
      .within(1, 1024);
  const CommandOption stream =
      app.add_flag("--stream", r.model.stream,
                   "chunk by chunk, as from a microphone, of a checkpoint that can: the text is "
                   "the same; says how long chunks wait and take");
  app.add_flag("--partial", r.partial,
               "with --stream: a line a chunk with the text so far; on a terminal it is shown "
               "without")
      .needs(stream);
  app.add_option("--batch", t.batch, "windows that go through the model together, at most")
      .within(1, 4096)
      .excludes(stream)
      .shows_default();
  app.add_option("--memory", r.memory_gib,
                 "GiB that a rank may take of its device; default: a quarter of the node for its "
                 "ranks, half a card")
      .positive();
  app.add_option("--window", t.window_seconds,
                 "seconds: longer recordings are cut into overlapping windows, shorter ones where "
                 "memory asks for it")
      .within(0.1, 1e6)
      .excludes(stream)
      .shows_default();
  app.add_option("--channel", r.channel, "of recordings with several: average, or a number from 0");
  app.add_option("--on-bad", r.on_bad,
                 "stop: at the first recording that cannot be read (exit code 3); skip: leave them "
                 "out, and say which")
      .one_of({"stop", "skip"})
      .shows_default();
  app.add_option("--device", r.model.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", r.model.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, r.model.tensor);
}

}  // namespace

int transcribe_command(const Arguments& arguments) {
  CommandLine app(
      "What recordings say, by a speech checkpoint (or a run directory: its newest). Recordings "
      "are shared by the ranks; the text of each depends on nothing but itself.",
      "choir transcribe");
  Request request;
  add_options(app, request);
  if (const auto code = parse(app, arguments)) return *code;
  request.model.transcription.memory = request.memory_gib * 1024 * 1024 * 1024;
  return with_mpi([&](MpiSession& session) {
    const auto refuse = [&](bool bad, const char* what, const char* cure) {
      if (!bad) return;
      DeckError error(what, cure);
      error.set_agreed_ranks(session.size());
      throw error;
    };
    refuse(request.files.empty() == request.manifest.empty(),
           "give sound files or a --manifest, one of the two", "choir transcribe RUN a.wav b.flac");
    refuse(request.manifest.empty() != request.out.empty(), "--manifest and --out go together",
           "--manifest in.json --out out.json");
    return transcribe(session, request);
  });
}

}  // namespace choir
