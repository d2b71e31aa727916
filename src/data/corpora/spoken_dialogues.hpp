#pragma once
// Dialogues for full-duplex models: a user, in one of many voices and with noise, asks, and an
// agent of one voice answers, on two recordings of the same length. Words and times are pure
// functions of (seed, number); espeak-ng speaks the corpus.
#include <cstdint>
#include <string>
#include <vector>

#include "src/data/corpora/known_corpora.hpp"

namespace choir {

/// Samples of a frame of 80 ms. Recordings and the agent's utterances are whole frames.
inline constexpr std::int64_t kDialogueFrame = kSpokenRate * 8 / 100;

/// A question and its answer: sums ("three plus four"), repeated digits, counting.
struct SpokenExchange {
  std::string question;
  std::vector<std::string> answer;  ///< digits in words, spoken one by one
  int pause = 0;                    ///< frames of silence before the question
  int late_ms = 0;                  ///< additional milliseconds, less than a frame
  int reply = 0;                    ///< frames between the question and BOS
  /// If not 0, the user interrupts the previous answer this many frames after its sound began, and
  /// the agent stops `stops` frames later; 0: the user waits for the end.
  int breaks_in = 0, stops = 0;
};

struct SpokenDialogue {
  CorpusSplit split = CorpusSplit::train;
  SpokenLine user;      ///< voice and style of all questions
  double loudness = 1;  ///< of the user
  std::vector<SpokenExchange> exchanges;
  int rest = 0;  ///< frames of silence at the end
};

/// Dialogue `number`: 2 to 4 exchanges, pauses of 3 to 8 frames. A fifth of the dialogues has one
/// barge-in into an answer that counts. An eighth is held out: half of these without a barge-in
/// (val), half with one each (val_barge_in). Three digits that they ask to repeat are never
/// repeated in training.
SpokenDialogue spoken_dialogue(std::uint64_t seed, std::int64_t number);

/// The positions of all turns, computed from their durations: the user in samples, the agent in
/// frames. BOS is at `begin`, the sound starts in the frame after it, and EOS is at `end`.
struct DialogueScore {
  struct User {
    std::int64_t begin = 0, end = 0;
  };
  struct Agent {
    std::int64_t begin = 0, end = 0;
  };
  std::vector<User> user;
  std::vector<Agent> agent;
  std::int64_t frames = 0;  ///< of both recordings
};
/// `question_samples`, `answer_frames`: lengths for each exchange without interruption.
DialogueScore score_dialogue(const SpokenDialogue& dialogue,
                             const std::vector<std::int64_t>& question_samples,
                             const std::vector<std::int64_t>& answer_frames);

/// The line with which the agent speaks a text: one voice, one gain, no noise, whole frames.
SpokenLine agent_line(const std::string& text);
/// Sentences of the agent from which a codec learns its voice: digits, numbers and common words. A
/// twentieth validates.
SpokenPlan agent_speech_plan(const SpokenOptions& options);

/// Collective; all ranks pass equal arguments. Writes to FOLDER: audio/dNNNNNN_user.wav and
/// _agent.wav; dialogues/SPLIT.jsonl, cuts of Lhotse with "target_audio" and supervisions of the
/// speakers "user" and "agent", where those of the agent align the words that are heard to their
/// end; conversations/SPLIT.jsonl, conversations of NeMo; SPLIT.json, a manifest of the user's
/// speech; agent/, half as many hours of agent_speech_plan(). The bytes are the same on any number
/// of ranks. Throws like speak_corpus().
CorpusReport speak_dialogues(Communicator& world, const std::string& folder,
                             const SpokenOptions& options, Logger& log);

}  // namespace choir
