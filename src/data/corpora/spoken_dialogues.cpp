#include "src/data/corpora/spoken_dialogues.hpp"

#include <algorithm>
#include <limits>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
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

}  // namespace choir
