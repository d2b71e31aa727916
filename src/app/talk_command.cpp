// choir talk RUN FILE --codec RUN --out FILE.wav [--live]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/models/duplex/dialogue_sides.hpp"
#include "src/models/duplex/dialogue_transcription.hpp"
#include "src/models/duplex/talker.hpp"
#include "src/report/dialogue_printer.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

namespace {

constexpr std::int64_t kForever = INT64_C(1) << 40;  // frames

struct TalkRequest {
  const FamilyTable& families;
  std::string checkpoint, file, out, codec, recogniser, channel, precision, device = "auto";
  std::string microphone = "default", loudspeaker = "default";
  double memory_gib = 0, seconds = 0;
  bool json = false, stream = false, live = false, ema = false;
};

/// The level relative to full scale; silence is -120.
double decibels(std::span<const std::int16_t> samples) {
  double sum = 0;
  for (const std::int16_t sample : samples) sum += static_cast<double>(sample) * sample;
  const double power = samples.empty() ? 0 : sum / static_cast<double>(samples.size());
  return std::max(-120.0, 10 * std::log10(power / (32768.0 * 32768.0) + 1e-12));
}

/// Runs one user's sound through the model, frame by frame. `ear` is null if the user's words are
/// not requested.
void hold_dialogue(const TalkRequest& request, DuplexTalker& talker, const DialogueMeaning& meaning,
                   CodecCoder& coder, UserSound& user, UserEar* ear) {
  const report::RecordedDialogue dialogue{.path = {},
                                          .user = request.file,
                                          .agent = request.out,
                                          .sample_rate = coder.sample_rate(),
                                          .frame_samples = coder.frame_samples(),
                                          .frames = {}};
  const Vocabulary units = Vocabulary::from_json(meaning.tokenizer, request.checkpoint);
  AgentSound sound(coder, meaning.codec, request.out, request.live ? request.loudspeaker : "");
  AgentText text(meaning.form.controls, units);
  using Form = report::DialoguePrinter::Form;
  report::DialoguePrinter printer(dialogue,
                                  request.json     ? Form::json
                                  : request.stream ? Form::frames
                                                   : Form::turns,
                                  !request.recogniser.empty());
  const std::int64_t hop = coder.frame_samples();
  std::int64_t all = user.samples(), frames = (all + hop - 1) / hop;
  std::vector<std::int16_t> in_frame;
  std::vector<double> loudness;  // of recorded frames
  std::int64_t heard = 0, answered = 0;
  std::string words;                        // of the user, not yet shown
  std::vector<report::DialogueFrame> made;  // not yet shown
  // A causal encoder needs only the beginning of a frame's sound.
  const auto level_of = [&](std::int64_t frame) {
    return frame < std::ssize(loudness) ? loudness[static_cast<std::size_t>(frame)]
                                        : decibels(in_frame);
  };
  while (answered < frames || heard < all) {
    const bool answers = answered < frames;
    const std::int64_t part =
        std::min({hop - heard % hop, answers ? talker.room() : hop, all - heard});
    const std::vector<std::int16_t> samples = user.read(heard, part);
    if (answers) talker.push(samples);
    if (ear) words += ear->hear(samples);
    heard += std::ssize(samples);
    if (std::ssize(samples) < part) {
      all = heard;
      frames = (all + hop - 1) / hop;
    }
    in_frame.insert(in_frame.end(), samples.begin(), samples.end());
    if (heard % hop == 0 || heard == all) {
      loudness.push_back(decibels(in_frame));
      in_frame.clear();
    }
    if (heard == all) {
      talker.end();
      if (ear) words += ear->end();
    }
    while (answered < frames && talker.ready()) {
      const double begin = now_seconds();
      std::vector<AgentFrame> chunk = talker.next();
      // The encoder of causal chunks produces one frame more than the clock has.
      chunk.resize(
          std::min<std::size_t>(chunk.size(), static_cast<std::size_t>(frames - answered)));
      for (const AgentFrame& frame : chunk) sound.add(frame.codes);
      const double ms = 1e3 * (now_seconds() - begin) / static_cast<double>(chunk.size());
      for (const AgentFrame& frame : chunk)
        made.push_back({.frame = frame.frame,
                        .text = text.add(frame.text),
                        .speaking = frame.speaking,
                        .heard = {},
                        .user_db = level_of(frame.frame),
                        .ms = ms});
      answered += std::ssize(chunk);
    }
    // The last frame is shown after the last words are recognised.
    if (made.empty() || (answered == frames && heard < all)) continue;
    made.front().heard = std::exchange(words, {});
    for (const report::DialogueFrame& frame : made) printer.show(frame);
    made.clear();
  }
  user.finish();
  sound.finish();
  printer.finish();
}

/// A recording, or the microphone for the requested time or until the model's positions end.
std::unique_ptr<UserSound> user_of(const TalkRequest& request, DuplexTalker& talker,
                                   const CodecCoder& coder) {
  const int rate = coder.sample_rate();
  if (!request.live)
    return std::make_unique<RecordedUser>(
        RecordingSource{.path = request.file, .channel = channel_choice_of(request.channel)}, rate);
  const std::int64_t hop = coder.frame_samples();
  // The encoder looks ahead to the end of its chunk, which needs positions too.
  const std::int64_t most =
      talker.most_frames() ? *talker.most_frames() - talker.chunks().frames : kForever;
  const double wished =
      request.seconds > 0 ? std::ceil(request.seconds * rate / static_cast<double>(hop)) : HUGE_VAL;
  const auto frames = static_cast<std::int64_t>(std::min(wished, static_cast<double>(most)));
  const bool ends = frames < kForever;
  print_safely(
      stderr, "listening to '{}' {}until Ctrl-C\n", request.microphone,
      ends ? fmt::format("for {:.0f} s, or ", static_cast<double>(frames * hop) / rate) : "");
  return std::make_unique<LiveUser>(request.microphone, request.file, rate, frames * hop);
}

int talk(MpiSession& session, const TalkRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, 1);
  Mesh& mesh = *place.mesh;
  choose_threads(mesh.node());
  together(mesh.world(), [&] {
    namespace fs = std::filesystem;
    std::error_code ignored;
    if (fs::weakly_canonical(request.file, ignored) == fs::weakly_canonical(request.out, ignored))
      throw DeckError(fmt::format("--out {} would overwrite the sound of the user", request.out),
                      "name another file");
  });
  LoadedModel loaded = open_model(
      request.families, request.checkpoint, request.precision, mesh,
      with_ema({"device=" + request.device, "parallel.tensor=1", "parallel.pipeline=1",
                "parallel.virtual_stages=1", "parallel.schedule=1f1b", "parallel.data=auto",
                "parallel.sequence=false", "parallel.context=1", "parallel.zero=0"},
               request.ema));
  DialogueMeaning meaning;
  together(mesh.world(), [&] {
    require_talker(model_of(loaded.deck), loaded.checkpoint.path);
    meaning = DialogueMeaning::from_json(loaded.vocabulary, loaded.checkpoint.path);
  });
  CodecRun codec(session, {.families = request.families,
                           .checkpoint = request.codec,
                           .precision = "fp32",
                           .device = request.device});
  CodecCoder& coder = codec.coder();
  StreamPlan plan;
  together(mesh.world(), [&] {
    if (coder.hash() != meaning.codec.hash)
      throw DataError(
          fmt::format("{} was trained on codes of codec {:016x}, but {} is codec {:016x}",
                      loaded.checkpoint.path, meaning.codec.hash, request.codec, coder.hash()),
          "give the codec run that `choir prepare codes` used for its training data");
    plan = plan_talk(inference_options(loaded), mesh.layout(), mesh.rank(),
                     request.memory_gib > 0 ? request.memory_gib * (1 << 30) : HUGE_VAL, nullptr);
  });
  open_device(place, loaded.deck);
  make_instance(loaded, plan.arena_bytes, place);
  loaded.instance->arena().set_requests(plan.requests);
  DuplexTalker talker(*loaded.instance, meaning.form.controls);
  std::optional<UserEar> ear;
  if (!request.recogniser.empty())
    ear.emplace(request.families, request.recogniser, "--recogniser", coder.sample_rate(),
                mesh.world());
  together(mesh.world(), [&] {
    if (session.rank() != 0) return;
    const std::unique_ptr<UserSound> user = user_of(request, talker, coder);
    hold_dialogue(request, talker, meaning, coder, *user, ear ? &*ear : nullptr);
  });
  return 0;
}

}  // namespace

int talk_command(const Invocation& call) {
  CommandLine app(
      "Holds a dialogue with a duplex checkpoint: it processes a recording, or your voice, frame "
      "by frame in constant memory and answers with text and sound while it listens.",
      "choir talk");
  TalkRequest request{.families = call.families};
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  app.add_option("file", request.file,
                 "sound of the user (WAV, FLAC, MP3, Ogg, Opus, AIFF, AU, CAF, W64) of any sample "
                 "rate; with --live, file to "
                 "which the user is recorded")
      .required();
  app.add_option("--out", request.out, "WAV file for the agent's sound, in sync with the user's")
      .required();
  app.add_option("--codec", request.codec, "run of the codec whose codes it was trained on")
      .required();
  app.add_option("--recogniser", request.recogniser,
                 "run of a streaming recogniser; the words of the user are then shown too");
  app.add_flag("--stream", request.stream,
               "print a line per frame immediately, instead of one per turn");
  app.add_flag("--json", request.json, "print one JSON line per frame, for `choir report`");
  auto live = app.add_flag("--live", request.live,
                           "use a microphone and a loudspeaker (ALSA) instead of a recording");
  app.add_option("--microphone", request.microphone, "ALSA device, as listed by `arecord -L`")
      .shows_default()
      .needs(live);
  app.add_option("--loudspeaker", request.loudspeaker,
                 "ALSA device, as listed by `aplay -L`; \"\": none")
      .shows_default()
      .needs(live);
  app.add_option("--seconds", request.seconds,
                 "length in seconds; default: until Ctrl-C, or until the learned positions of the "
                 "model end")
      .positive()
      .needs(live);
  app.add_option("--channel", request.channel,
                 "channel of sound with several: average, or a number from 0");
  app.add_option("--memory", request.memory_gib, "memory limit in GiB; default: none").positive();
  add_ema_option(app, request.ema);
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return talk(session, request); });
}

}  // namespace choir
