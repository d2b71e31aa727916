#pragma once
// Dialogues for full-duplex models: a user of many voices asks, with noise, and an agent of one
// voice answers, on two recordings of the same length. What is said and when are pure functions of
// (seed, number); a corpus of them is written by espeak-ng.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/corpora/known_corpora.hpp"

namespace choir {

/// Samples of a frame, 80 ms. Recordings and what the agent says are whole frames.
inline constexpr std::int64_t kDialogueFrame = kSpokenRate * 8 / 100;

/// A question and its answer: sums ("three plus four"), digits said again, counting.
struct SpokenExchange {
  std::string question;
  std::vector<std::string> answer;  ///< digits in words, said one by one
  int pause = 0;                    ///< frames of silence before the question
  int late_ms = 0;                  ///< ... and milliseconds, below a frame
  int reply = 0;                    ///< frames between the question and BOS
  /// The user breaks into the answer before, this many frames after its sound began, and the agent
  /// ends so many frames later; 0: it listens to the end.
  int breaks_in = 0, stops = 0;
};

struct SpokenDialogue {
  CorpusSplit split = CorpusSplit::train;
  SpokenLine user;      ///< voice and manner of all questions
  double loudness = 1;  ///< of the user
  std::vector<SpokenExchange> exchanges;
  int rest = 0;  ///< frames of silence at the end
};

/// Dialogue `number`: 2 to 4 exchanges, pauses of 3 to 8 frames, in a fifth of them one barge-in
/// into an answer that counts. An eighth is never trained on: half has no barge-in (val), half has
/// one each (val_barge_in); three digits that they let repeat are never repeated in training.
SpokenDialogue spoken_dialogue(std::uint64_t seed, std::int64_t number);

/// Where everything is, given how long it takes to say. The user in samples, the agent in frames:
/// BOS is at `begin`, the sound from the frame behind it on, EOS at `end`.
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
/// `question_samples`, `answer_frames`: of each exchange, uninterrupted.
DialogueScore score_dialogue(const SpokenDialogue& dialogue,
                             const std::vector<std::int64_t>& question_samples,
                             const std::vector<std::int64_t>& answer_frames);

/// The agent's way of saying one text: one voice, one gain, no noise, whole frames.
SpokenLine agent_line(const std::string& text);
/// Sentences of the agent for a codec to learn its voice from: digits, numbers and common words. A
/// twentieth validates.
SpokenPlan agent_speech_plan(const SpokenOptions& options);

/// Collective; every rank passes the same. Writes to FOLDER: audio/dNNNNNN_user.wav and _agent.wav;
/// dialogues/SPLIT.jsonl, cuts of Lhotse with "target_audio" and supervisions of the speakers
/// "user" and "agent", those of the agent with an alignment of the words that are heard to their
/// end; conversations/SPLIT.jsonl, conversations of NeMo; SPLIT.json, what the user
/// says as a manifest of speech; agent/, half as many hours of agent_speech_plan(). The same bytes
/// on any number of ranks. Throws as speak_corpus() does.
CorpusReport speak_dialogues(Communicator& world, const std::string& folder,
                             const SpokenOptions& options, Logger& log);

}  // namespace choir
