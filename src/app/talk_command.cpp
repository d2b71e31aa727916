// The two sides of a dialogue as sound: the user from a recording or a microphone, the agent to a
// file and, in a live dialogue, to a loudspeaker.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/app/codec_run.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/live_sound.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/models/duplex/dialogue_transcription.hpp"
#include "src/models/duplex/talker.hpp"
#include "src/report/dialogue.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stop_request.hpp"

namespace choir {

/// The sound of the user, in order.
class UserSound {
 public:
  virtual ~UserSound() = default;
  /// The largest number of samples.
  virtual std::int64_t samples() const = 0;
  /// Returns samples [first, first + count), fewer at the user's end.
  virtual std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) = 0;
  virtual void finish() {}
};

class RecordedUser final : public UserSound {
 public:
  /// Throws DataError if the recording is empty.
  RecordedUser(const RecordingSource& source, int sample_rate);
  std::int64_t samples() const override { return recording_.samples(); }
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) override;

 private:
  Recording recording_;
};

/// A microphone, until a number of samples is recorded or Ctrl-C; the sound is kept in a file.
class LiveUser final : public UserSound {
 public:
  LiveUser(const std::string& microphone, const std::string& path, int sample_rate,
           std::int64_t samples);
  std::int64_t samples() const override { return samples_; }
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) override;
  void finish() override;

 private:
  SoundDevice microphone_;
  WavWriter file_;
  StopRequest stop_;
  std::int64_t samples_;
};

/// Turns the agent's codes into sound, frame by frame. Frames of control codes are silent.
class AgentSound {
 public:
  /// `loudspeaker`: "" writes only the file.
  AgentSound(CodecCoder& coder, const CodecDescription& codec, const std::string& path,
             const std::string& loudspeaker);

  void add(std::vector<std::int32_t> codes);
  void finish();

 private:
  void say(std::span<const std::int16_t> sound);

  const CodecDescription& codec_;
  CodeSpeaker speaker_;
  WavWriter file_;
  std::optional<SoundDevice> loudspeaker_;
};

namespace {

// Seconds of sound in the buffers of the devices, before it is heard or after it was recorded. The
// answer is late by this much.
constexpr double kMicrophoneBuffer = 0.5, kLoudspeakerBuffer = 0.25;

void tell_gaps(const SoundDevice& device, const char* what) {
  if (device.gaps() > 0)
    print_safely(stderr, "{} {} times: the model was too slow, or the machine busy\n", what,
                 device.gaps());
}

}  // namespace

RecordedUser::RecordedUser(const RecordingSource& source, int sample_rate)
    : recording_(Recording::open(source, sample_rate)) {
  if (recording_.samples() == 0)
    throw DataError(source.path + " has no sound", "record at least one frame");
}

std::vector<std::int16_t> RecordedUser::read(std::int64_t first, std::int64_t count) {
  return recording_.read(first, std::min(count, recording_.samples() - first));
}

LiveUser::LiveUser(const std::string& microphone, const std::string& path, int sample_rate,
                   std::int64_t samples)
    : microphone_(microphone, SoundDevice::Direction::capture, sample_rate, kMicrophoneBuffer),
      file_(path, sample_rate),
      stop_(0, 0, ""),
      samples_(samples) {}

std::vector<std::int16_t> LiveUser::read(std::int64_t, std::int64_t count) {
  if (stop_.poll(0) != Stop::none) return {};
  std::vector<std::int16_t> sound(static_cast<std::size_t>(count));
  microphone_.read(sound);
  file_.append(sound);
  return sound;
}

void LiveUser::finish() {
  file_.finish();
  tell_gaps(microphone_, "the microphone lost sound");
}

AgentSound::AgentSound(CodecCoder& coder, const CodecDescription& codec, const std::string& path,
                       const std::string& loudspeaker)
    : codec_(codec), speaker_(coder), file_(path, coder.sample_rate()) {
  if (!loudspeaker.empty())
    loudspeaker_.emplace(loudspeaker, SoundDevice::Direction::playback, coder.sample_rate(),
                         kLoudspeakerBuffer);
}

void AgentSound::add(std::vector<std::int32_t> codes) {
  for (std::size_t k = 0; k < codes.size(); ++k)
    if (codes[k] >= codec_.codes_per_book) codes[k] = codec_.silence[k];
  say(speaker_.push(codes, 1));
}

void AgentSound::finish() {
  say(speaker_.finish());
  file_.finish();
  if (!loudspeaker_) return;
  loudspeaker_->drain();
  tell_gaps(*loudspeaker_, "the loudspeaker fell silent");
}

void AgentSound::say(std::span<const std::int16_t> sound) {
  file_.append(sound);
  if (loudspeaker_) loudspeaker_->write(sound);
}

namespace {

// choir talk RUN FILE --codec RUN --out FILE.wav [--live]

constexpr std::int64_t kForever = INT64_C(1) << 40;  // frames

struct TalkRequest {
  const FamilyTable& families;
  std::string checkpoint, file, out, codec, recogniser, channel, precision, device = "auto";
  std::string microphone = "default", loudspeaker = "default";
  double memory_gib = 0, seconds = 0;
  bool json = false, stream = false, live = false, ema = false;
};

/// Turns the tokens of the agent into the text of its turn.
class AgentText {
 public:
  AgentText(const DialogueMeaning& meaning, const Vocabulary& units)
      : controls_(meaning.form.controls), units_(units) {}

  std::string add(std::int32_t token) {
    if (token == controls_.bos) first_ = true;
    if (token == controls_.pad || token == controls_.bos || token == controls_.eos) return {};
    std::string piece = units_.piece(token);
    if (first_ && piece.starts_with(' ')) piece.erase(0, 1);
    first_ = false;
    return characters_.push(piece);
  }

 private:
  DialogueControls controls_;
  const Vocabulary& units_;
  Utf8Stream characters_;
  bool first_ = true;
};

/// The level relative to full scale; silence is -120.
double decibels(std::span<const std::int16_t> samples) {
  double sum = 0;
  for (const std::int16_t sample : samples) sum += static_cast<double>(sample) * sample;
  const double power = samples.empty() ? 0 : sum / static_cast<double>(samples.size());
  return std::max(-120.0, 10 * std::log10(power / (32768.0 * 32768.0) + 1e-12));
}

/// Prints every turn as it comes, or with --stream every frame; with --json lines for `choir
/// report`.
class TalkPrinter {
 public:
  TalkPrinter(const TalkRequest& request, const report::RecordedDialogue& dialogue)
      : request_(request), dialogue_(dialogue) {
    if (request.json) print_safely("{}\n", report::dialogue_head_line(dialogue));
  }

  void show(const report::DialogueFrame& frame) {
    times_.push_back(frame.ms);
    if (request_.json)
      print_safely("{}\n", report::dialogue_frame_line(dialogue_, frame));
    else if (request_.stream)
      print_safely("{:8.2f} s  {:7}  user {:6.1f} dB  {:5.1f} ms  {}{}\n", at(frame.frame),
                   frame.speaking ? "speaks" : "listens", frame.user_db, frame.ms, frame.text,
                   frame.heard.empty() ? "" : fmt::format("  (hears '{}')", frame.heard));
    else
      show_turn(frame);
    if (request_.json || request_.stream) std::fflush(stdout);
  }

  void finish() {
    if (begun_) print_safely("\n");
    show_heard();
    std::FILE* const to = request_.json ? stderr : stdout;
    const double frame_ms = 1e3 * dialogue_.seconds_per_frame();
    const auto middle = times_.begin() + std::ssize(times_) / 2;
    std::nth_element(times_.begin(), middle, times_.end());
    const double most = *std::max_element(times_.begin(), times_.end());
    print_safely(to, "{} frames of {:.0f} ms: {:.1f} ms each (median), {:.1f} ms at most; {}\n",
                 times_.size(), frame_ms, *middle, most, request_.out);
  }

 private:
  double at(std::int64_t frame) const {
    return static_cast<double>(frame) * dialogue_.seconds_per_frame();
  }
  /// The words of the user are printed above the answer to them, or below an answer that they
  /// interrupt.
  void show_turn(const report::DialogueFrame& frame) {
    if (!frame.speaking && begun_) print_safely("  (until {:.2f} s)\n", at(frame.frame));
    if (!frame.heard.empty()) {
      if (heard_.empty()) heard_from_ = frame.frame;
      heard_ += frame.heard;
      heard_last_ = frame.frame;
    }
    if (frame.speaking ? !begun_ : at(frame.frame - heard_last_) >= kPauseSeconds) show_heard();
    if (frame.speaking && !begun_)
      print_safely("{:8.2f} s  {}", at(frame.frame), request_.recogniser.empty() ? "" : "agent  ");
    begun_ = frame.speaking;
    print_safely("{}", frame.text);
    std::fflush(stdout);
  }
  void show_heard() {
    if (!heard_.empty()) print_safely("{:8.2f} s  user   {}\n", at(heard_from_), heard_);
    heard_.clear();
  }

  static constexpr double kPauseSeconds = 1;

  const TalkRequest& request_;
  const report::RecordedDialogue& dialogue_;
  std::vector<double> times_;
  bool begun_ = false;
  std::string heard_;
  std::int64_t heard_from_ = 0, heard_last_ = 0;
};

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
  AgentText text(meaning, units);
  TalkPrinter printer(request, dialogue);
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
                 "sound of the user (WAV, FLAC, OGG) of any sample rate; with --live, file to "
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
