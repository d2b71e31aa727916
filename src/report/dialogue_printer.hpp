#pragma once
// A dialogue on the terminal while it is held. Local.
#include <cstdint>
#include <string>
#include <vector>

#include "src/report/dialogue.hpp"

namespace choir::report {

class DialoguePrinter {
 public:
  /// turns: a line per turn as it comes; frames: a line per frame; json: the lines that
  /// read_dialogue() reads.
  enum class Form { turns, frames, json };

  /// `names_sides`: the words of the user are printed, too, so each side has its name. `dialogue`
  /// must outlive this; its frames are not used.
  DialoguePrinter(const RecordedDialogue& dialogue, Form form, bool names_sides);

  void show(const DialogueFrame& frame);
  /// Ends the last line and prints the times of the frames, of which there is at least one.
  void finish();

 private:
  double at(std::int64_t frame) const {
    return static_cast<double>(frame) * dialogue_.seconds_per_frame();
  }
  /// The words of the user are printed above the answer to them, or below an answer that they
  /// interrupt.
  void show_turn(const DialogueFrame& frame);
  void show_heard();

  const RecordedDialogue& dialogue_;
  Form form_;
  bool names_sides_;
  std::vector<double> times_;
  bool begun_ = false;
  std::string heard_;
  std::int64_t heard_from_ = 0, heard_last_ = 0;
};

}  // namespace choir::report
