#include "src/data/corpora/spoken_dialogues.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/core/philox.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/corpora/spoken_questions.hpp"
#include "src/data/corpora/spoken_text.hpp"

namespace choir {
namespace {

constexpr int kDialoguesVersion = 2;
constexpr double kNoNoise = std::numeric_limits<double>::infinity();
// relative to espeak-ng's output: the loudest word stays below 1
constexpr double kAgentGain = 0.6;
constexpr int kFewestToBreak = 6, kMostCounted = 9;

/// The sequence of random numbers of one dialogue.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t number)
      : key_(philox_key(seed, "spoken dialogues")), number_(static_cast<std::uint64_t>(number)) {}
  int between(int low, int high) { return choir::between(word(), low, high); }
  double uniform() { return uniform01(word()); }

 private:
  std::uint32_t word() {
    const std::uint64_t at = next_++;
    return philox_at(key_, number_, at / 4)[at % 4];
  }
  PhiloxKey key_;
  std::uint64_t number_, next_ = 0;
};

std::vector<std::string> digits_in_words(const std::vector<int>& digits) {
  std::vector<std::string> words;
  for (const int digit : digits) words.push_back(number_words(digit));
  return words;
}

/// Selects a tenth of the texts to repeat; depends on the words alone.
bool held_out(std::uint64_t seed, const std::string& words) {
  return between(philox_at(philox_key(seed, "spoken dialogues held out " + words), 0)[0], 0, 9) ==
         0;
}

SpokenExchange add_two(Draws& draws) {
  const int a = draws.between(0, 9), b = draws.between(0, 9 - a);
  const char* const begin = draws.between(0, 1) == 0 ? "" : "what is ";
  return {.question = fmt::format("{}{} plus {}", begin, number_words(a), number_words(b)),
          .answer = digits_in_words({a + b})};
}

SpokenExchange say_again(Draws& draws, std::uint64_t seed, bool validates) {
  // Two digits are never held out: if they occurred in training only within three, a model would
  // learn to expect a third.
  const int length = draws.between(2, 3);
  std::vector<std::string> words;
  do {
    std::vector<int> digits;
    for (int d = 0; d < length; ++d) digits.push_back(draws.between(0, 9));
    words = digits_in_words(digits);
  } while (length == 3 && held_out(seed, join(words, " ")) != validates);
  const char* const begin = draws.between(0, 1) == 0 ? "say " : "repeat ";
  return {.question = begin + join(words, " "), .answer = words};
}

SpokenExchange count_to(int last) {
  std::vector<int> digits;
  for (int digit = 1; digit <= last; ++digit) digits.push_back(digit);
  return {.question = "count to " + number_words(last), .answer = digits_in_words(digits)};
}

}  // namespace

SpokenDialogue spoken_dialogue(std::uint64_t seed, std::int64_t number) {
  Draws draws(seed, number);
  SpokenDialogue dialogue;
  const bool validates = number % 8 == 3;
  if (validates) dialogue.split = number % 16 == 3 ? CorpusSplit::val : CorpusSplit::val_barge_in;
  const bool breaks =
      validates ? dialogue.split == CorpusSplit::val_barge_in : draws.between(0, 4) == 0;
  const auto& voices = spoken_voices();
  dialogue.user.voice =
      voices[static_cast<std::size_t>(draws.between(0, static_cast<int>(voices.size()) - 1))];
  dialogue.user.words_per_minute = draws.between(130, 190);
  dialogue.user.pitch = draws.between(30, 70);
  dialogue.user.snr_db = 15 + 20 * draws.uniform();
  dialogue.user.id = static_cast<std::uint64_t>(number);
  dialogue.user.final_pause = false;
  dialogue.loudness = 0.5 + 0.5 * draws.uniform();
  const int count = draws.between(2, 4);
  const int broken = breaks ? draws.between(0, count - 2) : -1;
  for (int e = 0; e < count; ++e) {
    const int kind = draws.between(0, 3);
    SpokenExchange exchange = e == broken ? count_to(draws.between(kFewestToBreak, kMostCounted))
                              : kind < 2  ? add_two(draws)
                              : kind == 2 ? say_again(draws, seed, validates)
                                          : count_to(draws.between(2, 5));
    exchange.pause = draws.between(3, 8);
    exchange.late_ms = draws.between(0, 79);
    exchange.reply = draws.between(3, 8);
    if (e > 0 && e - 1 == broken) {
      exchange.breaks_in = draws.between(8, 16);
      exchange.stops = draws.between(4, 6);
    }
    dialogue.exchanges.push_back(std::move(exchange));
  }
  dialogue.rest = draws.between(3, 8);
  return dialogue;
}

DialogueScore score_dialogue(const SpokenDialogue& dialogue,
                             const std::vector<std::int64_t>& question_samples,
                             const std::vector<std::int64_t>& answer_frames) {
  DialogueScore score;
  std::int64_t free = 0;  // the frame in which the agent has stopped
  for (std::size_t e = 0; e < dialogue.exchanges.size(); ++e) {
    const SpokenExchange& exchange = dialogue.exchanges[e];
    std::int64_t from = free + exchange.pause;
    if (exchange.breaks_in > 0) {
      DialogueScore::Agent& broken = score.agent.back();
      from = broken.begin + 1 + exchange.breaks_in;
      broken.end = std::min(broken.end, from + exchange.stops);
    }
    DialogueScore::User user;
    user.begin = from * kDialogueFrame + exchange.late_ms * kSpokenRate / 1000;
    user.end = user.begin + question_samples[e];
    DialogueScore::Agent agent;
    agent.begin = (user.end + kDialogueFrame - 1) / kDialogueFrame + exchange.reply;
    agent.end = agent.begin + 1 + answer_frames[e];
    free = agent.end;
    score.user.push_back(user);
    score.agent.push_back(agent);
  }
  score.frames = free + dialogue.rest;
  return score;
}

SpokenLine agent_line(const std::string& text) {
  return {.text = text,
          .voice = "en-us",
          .words_per_minute = 150,
          .pitch = 50,
          .snr_db = kNoNoise,
          .final_pause = false,
          .gain = kAgentGain,
          .frame = kDialogueFrame};
}

SpokenPlan agent_speech_plan(const SpokenOptions& options) {
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  nlohmann::ordered_json request;
  request["corpus"] = "agent speech";
  request["version"] = kDialoguesVersion;
  request["hours"] = options.hours;
  request["seed"] = options.seed;
  plan.request = dumped(request);
  plan.line = [key = philox_key(options.seed, "agent speech")](std::int64_t i) {
    const PhiloxBlock shape = philox_at(key, static_cast<std::uint64_t>(i), 0);
    const int length = between(shape[1], 2, 6), kind = between(shape[0], 0, 3);
    std::vector<std::string> words;
    const auto common = common_words();
    for (int w = 0; w < length; ++w) {
      const std::uint32_t word =
          philox_at(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(w) + 1)[0];
      words.push_back(kind == 0   ? number_words(between(word, 0, 9))
                      : kind == 1 ? number_words(between(word, 10, 999))
                                  : common[static_cast<std::size_t>(
                                        between(word, 0, static_cast<int>(common.size()) - 1))]);
    }
    SpokenPlan::Line line;
    line.spoken = agent_line(join(words, " "));
    line.split = i % 20 == 7 ? CorpusSplit::val : CorpusSplit::train;
    return line;
  };
  return plan;
}

namespace {

// Writes dialogues as sound files and manifests.

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using Sound = std::vector<std::int16_t>;

constexpr std::int64_t kMostExchanges = 4;
constexpr std::int64_t kDialoguesAtOnce = 16;      // per rank
constexpr std::int64_t kFade = kSpokenRate / 200;  // samples of the fade-out of an interrupted word
constexpr double kSeconds = 0.08;                  // per frame

std::string file_of(std::int64_t number, const char* who) {
  return fmt::format("audio/d{:06}_{}.wav", number, who);
}

/// The ten digits in the agent's voice, each in whole frames.
class AgentWords {
 public:
  AgentWords() {
    for (int digit = 0; digit < 10; ++digit) {
      const std::string word = number_words(digit);
      words_[word] = speak(agent_line(word), 0);
    }
  }
  Sound say(const SpokenExchange& exchange) const {
    Sound all;
    for (const std::string& word : exchange.answer) {
      const Sound& one = words_.at(word);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  /// Frames from the beginning of the answer to the end of each of its words.
  std::vector<std::int64_t> ends(const SpokenExchange& exchange) const {
    std::vector<std::int64_t> all;
    for (const std::string& word : exchange.answer)
      all.push_back((all.empty() ? 0 : all.back()) + std::ssize(words_.at(word)) / kDialogueFrame);
    return all;
  }
  std::vector<std::int64_t> frames(const SpokenDialogue& dialogue) const {
    std::vector<std::int64_t> all;
    for (const SpokenExchange& exchange : dialogue.exchanges) all.push_back(ends(exchange).back());
    return all;
  }

 private:
  std::map<std::string, Sound> words_;
};

using QuestionSamples = std::array<std::int64_t, kMostExchanges>;  // 0: no such exchange

DialogueScore score_of(const SpokenDialogue& dialogue, const QuestionSamples& samples,
                       const AgentWords& words) {
  return score_dialogue(dialogue, {samples.begin(), samples.end()}, words.frames(dialogue));
}

void write_sound(const std::string& path, const Sound& samples) {
  std::string bytes = wav_header(kSpokenRate, std::ssize(samples));
  bytes.append(reinterpret_cast<const char*>(samples.data()), samples.size() * 2);
  PosixFile file = PosixFile::for_writing(path);
  file.write_at(bytes.data(), bytes.size(), 0);
}

/// The signal of the user's microphone: the questions, with noise also in the pauses.
Sound user_sound(const SpokenDialogue& dialogue, const std::vector<Sound>& questions,
                 const DialogueScore& score, std::uint64_t seed) {
  std::vector<double> mixed(static_cast<std::size_t>(score.frames * kDialogueFrame), 0.0);
  double power = 0;
  std::int64_t spoken = 0;
  for (std::size_t e = 0; e < questions.size(); ++e) {
    auto at = mixed.begin() + score.user[e].begin;
    for (const std::int16_t sample : questions[e]) {
      const double value = dialogue.loudness * sample;
      *at++ = value;
      power += value * value;
    }
    spoken += std::ssize(questions[e]);
  }
  const double noise =
      std::sqrt(power / static_cast<double>(spoken)) * std::pow(10.0, -dialogue.user.snr_db / 20);
  const PhiloxKey key = philox_key(seed, fmt::format("dialogue noise {}", dialogue.user.id));
  Sound samples(mixed.size());
  for (std::size_t i = 0; i < mixed.size(); ++i)
    samples[i] = static_cast<std::int16_t>(
        std::lrint(std::clamp(mixed[i] + noise * normal_at(key, i), -32768.0, 32767.0)));
  return samples;
}

Sound agent_sound(const SpokenDialogue& dialogue, const AgentWords& words,
                  const DialogueScore& score) {
  Sound samples(static_cast<std::size_t>(score.frames * kDialogueFrame), 0);
  for (std::size_t e = 0; e < score.agent.size(); ++e) {
    const DialogueScore::Agent& turn = score.agent[e];
    Sound said = words.say(dialogue.exchanges[e]);
    const std::int64_t room = (turn.end - turn.begin - 1) * kDialogueFrame;
    if (room < std::ssize(said)) {
      said.resize(static_cast<std::size_t>(room));
      for (std::int64_t i = 0; i < kFade; ++i) {
        std::int16_t& sample = said[static_cast<std::size_t>(room - 1 - i)];
        sample = static_cast<std::int16_t>(sample * i / kFade);
      }
    }
    std::copy(said.begin(), said.end(), samples.begin() + (turn.begin + 1) * kDialogueFrame);
  }
  return samples;
}

QuestionSamples write_dialogue(const std::string& folder, std::uint64_t seed, std::int64_t number,
                               const AgentWords& words) {
  const SpokenDialogue dialogue = spoken_dialogue(seed, number);
  std::vector<Sound> questions;
  QuestionSamples samples{};
  for (const SpokenExchange& exchange : dialogue.exchanges) {
    SpokenLine line = dialogue.user;
    // noise is added to the whole dialogue later
    line.snr_db = std::numeric_limits<double>::infinity();
    line.text = exchange.question;
    questions.push_back(speak(line, seed));
    samples[questions.size() - 1] = std::ssize(questions.back());
  }
  const DialogueScore score = score_of(dialogue, samples, words);
  write_sound(folder + "/" + file_of(number, "user"), user_sound(dialogue, questions, score, seed));
  write_sound(folder + "/" + file_of(number, "agent"), agent_sound(dialogue, words, score));
  return samples;
}

double seconds_of_samples(std::int64_t samples) {
  return static_cast<double>(samples) / kSpokenRate;
}

double seconds_of_frames(std::int64_t frames) {
  return seconds_of_samples(frames * kDialogueFrame);
}

OrderedJson recording_of(std::int64_t number, const char* who, std::int64_t frames) {
  OrderedJson recording;
  recording["id"] = fmt::format("d{:06}-{}", number, who);
  recording["sources"] = {
      {{"type", "file"}, {"channels", {0}}, {"source", "../" + file_of(number, who)}}};
  recording["sampling_rate"] = kSpokenRate;
  recording["num_samples"] = frames * kDialogueFrame;
  recording["duration"] = seconds_of_frames(frames);
  recording["channel_ids"] = {0};
  return recording;
}

OrderedJson supervision_of(const std::string& id, const OrderedJson& recording, double start,
                           double duration, const std::string& text, const char* speaker) {
  OrderedJson supervision;
  supervision["id"] = id;
  supervision["recording_id"] = recording["id"];
  supervision["start"] = start;
  supervision["duration"] = duration;
  supervision["channel"] = 0;
  supervision["text"] = text;
  supervision["language"] = "en";
  supervision["speaker"] = speaker;
  return supervision;
}

/// The words of a turn that are heard to their end, as a Lhotse alignment.
OrderedJson alignment_of(const SpokenExchange& exchange, const DialogueScore::Agent& turn,
                         const AgentWords& words) {
  OrderedJson list = OrderedJson::array();
  std::int64_t from = turn.begin + 1;
  const std::vector<std::int64_t> ends = words.ends(exchange);
  for (std::size_t w = 0; w < ends.size(); ++w) {
    const std::int64_t to = turn.begin + 1 + ends[w];
    if (to > turn.end) break;
    list.push_back({exchange.answer[w], seconds_of_frames(from), seconds_of_frames(to - from)});
    from = to;
  }
  return {{"word", std::move(list)}};
}

std::string cut_of(const SpokenDialogue& dialogue, const DialogueScore& score, std::int64_t number,
                   const AgentWords& words) {
  const OrderedJson recording = recording_of(number, "user", score.frames);
  OrderedJson cut;
  cut["id"] = fmt::format("d{:06}", number);
  cut["start"] = 0.0;
  cut["duration"] = recording["duration"];
  cut["channel"] = 0;
  cut["supervisions"] = OrderedJson::array();
  for (std::size_t e = 0; e < dialogue.exchanges.size(); ++e) {
    const auto& user = score.user[e];
    const auto& agent = score.agent[e];
    cut["supervisions"].push_back(supervision_of(
        fmt::format("d{:06}-{}-user", number, e), recording, seconds_of_samples(user.begin),
        seconds_of_samples(user.end - user.begin), dialogue.exchanges[e].question, "user"));
    cut["supervisions"].push_back(supervision_of(fmt::format("d{:06}-{}-agent", number, e),
                                                 recording, seconds_of_frames(agent.begin),
                                                 seconds_of_frames(agent.end - agent.begin),
                                                 join(dialogue.exchanges[e].answer, " "), "agent"));
    cut["supervisions"].back()["alignment"] = alignment_of(dialogue.exchanges[e], agent, words);
  }
  cut["recording"] = recording;
  cut["custom"] = {{"target_audio", recording_of(number, "agent", score.frames)},
                   {"voice", dialogue.user.voice}};
  cut["type"] = "MonoCut";
  return dumped(cut) + "\n";
}

std::string dialogue_conversation(const SpokenDialogue& dialogue, const DialogueScore& score,
                                  std::int64_t number) {
  OrderedJson line;
  line["id"] = fmt::format("d{:06}", number);
  line["conversations"] = OrderedJson::array();
  for (std::size_t e = 0; e < dialogue.exchanges.size(); ++e) {
    const auto& user = score.user[e];
    line["conversations"].push_back({{"from", "User"},
                                     {"type", "audio"},
                                     {"value", "../" + file_of(number, "user")},
                                     {"offset", seconds_of_samples(user.begin)},
                                     {"duration", seconds_of_samples(user.end - user.begin)}});
    line["conversations"].push_back({{"from", "Assistant"},
                                     {"type", "text"},
                                     {"value", join(dialogue.exchanges[e].answer, " ")}});
  }
  return dumped(line) + "\n";
}

/// Writes the manifests, and corpus.json last.
CorpusReport finish_dialogues(const std::string& folder, const std::string& request,
                              std::uint64_t seed, const std::vector<QuestionSamples>& samples,
                              const AgentWords& words) {
  std::array<std::string, kCorpusSplits> cuts, conversations;
  std::vector<CorpusEntry> entries;
  std::int64_t frames = 0, broken = 0;
  for (std::int64_t i = 0; i < std::ssize(samples); ++i) {
    const SpokenDialogue dialogue = spoken_dialogue(seed, i);
    const DialogueScore score = score_of(dialogue, samples[static_cast<std::size_t>(i)], words);
    const auto split = static_cast<std::size_t>(dialogue.split);
    frames += score.frames;
    cuts[split] += cut_of(dialogue, score, i, words);
    conversations[split] += dialogue_conversation(dialogue, score, i);
    for (std::size_t e = 0; e < dialogue.exchanges.size(); ++e) {
      broken += dialogue.exchanges[e].breaks_in > 0;
      entries.push_back({dialogue.split, file_of(i, "user"),
                         score.user[e].begin * 1000 / kSpokenRate,
                         seconds_of_samples(score.user[e].end - score.user[e].begin),
                         dialogue.exchanges[e].question, dialogue.user.voice});
    }
  }
  for (const char* part : {"/dialogues", "/conversations"}) fs::create_directories(folder + part);
  for (std::size_t split = 0; split < kCorpusSplits; ++split) {
    if (cuts[split].empty()) continue;
    const std::string name = name_of(static_cast<CorpusSplit>(split)) + ".jsonl";
    write_whole_file(folder + "/dialogues/" + name, cuts[split]);
    write_whole_file(folder + "/conversations/" + name, conversations[split]);
  }
  CorpusReport report = finish_corpus(folder, request, entries);
  report.note = fmt::format(
      "{} dialogues of {:.2f} minutes in {}/dialogues, for `choir prepare dialogues`; in {} of "
      "them the user interrupts an answer",
      format_count(std::ssize(samples)), static_cast<double>(frames) * kSeconds / 60, folder,
      format_count(broken));
  return report;
}

/// Speaks and writes the next dialogues of this rank; returns the lengths of their questions.
std::vector<QuestionSamples> write_some(const std::string& folder, std::uint64_t seed,
                                        std::int64_t first, const AgentWords& words) {
  std::vector<QuestionSamples> samples(kDialoguesAtOnce);
  std::vector<std::exception_ptr> failures(kDialoguesAtOnce);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < kDialoguesAtOnce; ++i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      samples[at] = write_dialogue(folder, seed, first + i, words);
    } catch (...) {
      failures[at] = std::current_exception();
    }
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return samples;
}

/// The number of dialogues that together reach `target` frames; 0 if all of them do not.
std::int64_t dialogues_for(const std::vector<QuestionSamples>& samples, std::uint64_t seed,
                           const AgentWords& words, std::int64_t target, std::int64_t& frames) {
  frames = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    frames += score_of(spoken_dialogue(seed, number), samples[i], words).frames;
    if (frames >= target) return number + 1;
  }
  return 0;
}

void remove_dialogues(const std::string& folder, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from; i < to; ++i)
    for (const char* who : {"user", "agent"}) fs::remove(folder + "/" + file_of(i, who));
}

std::string request_of_dialogues(const SpokenOptions& options) {
  OrderedJson request;
  request["corpus"] = "spoken-dialogues";
  request["version"] = 2;
  request["hours"] = options.hours;
  request["seed"] = options.seed;
  return dumped(request);
}

}  // namespace

CorpusReport speak_dialogues(Communicator& world, const std::string& folder,
                             const SpokenOptions& options, Logger& log) {
  std::string version;
  together(world, [&] { version = espeak_version(); });
  require_equal(world, crc32c(version.data(), version.size()), "the version of espeak-ng");
  const std::string request = request_of_dialogues(options);
  CorpusReport report;
  std::int64_t found = 0;
  std::unique_ptr<AgentWords> words;
  together(world, [&] {
    words = std::make_unique<AgentWords>();
    if (world.rank() != 0) return;
    found = find_corpus(folder, request, report);
    if (found == 0) fs::create_directories(folder + "/audio");
  });
  world.broadcast(&found, sizeof found, 0);
  if (found != 0) return report;

  const auto target = static_cast<std::int64_t>(options.hours * 3600 / kSeconds);
  ProgressLine progress(log, "speaking dialogues");
  std::vector<QuestionSamples> samples;
  std::int64_t count = 0, frames = 0;
  for (std::int64_t first = 0; count == 0; first += world.size() * kDialoguesAtOnce) {
    std::vector<QuestionSamples> wave(static_cast<std::size_t>(world.size() * kDialoguesAtOnce));
    const std::int64_t mine = world.rank() * kDialoguesAtOnce;
    together(world, [&] {
      const auto spoken = write_some(folder, options.seed, first + mine, *words);
      std::copy(spoken.begin(), spoken.end(), wave.begin() + mine);
    });
    world.all_gather(wave.data(), kDialoguesAtOnce * kMostExchanges, DType::i64);
    samples.insert(samples.end(), wave.begin(), wave.end());
    count = dialogues_for(samples, options.seed, *words, target, frames);
    progress.at(std::min(frames, target), target);
  }
  SpokenOptions agent = options;
  agent.hours = options.hours / 2;
  speak_corpus(world, folder + "/agent", agent_speech_plan(agent), log);
  together(world, [&] {
    if (world.rank() != 0) return;
    remove_dialogues(folder, count, std::ssize(samples));
    samples.resize(static_cast<std::size_t>(count));
    report = finish_dialogues(folder, request, options.seed, samples, *words);
  });
  return report;
}

}  // namespace choir
