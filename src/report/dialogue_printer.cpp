#include "src/report/dialogue_printer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "src/core/output.hpp"

namespace choir::report {
namespace {

/// A pause of the user that ends a line of words.
constexpr double kPauseSeconds = 1;

}  // namespace

DialoguePrinter::DialoguePrinter(const RecordedDialogue& dialogue, Form form, bool names_sides)
    : dialogue_(dialogue), form_(form), names_sides_(names_sides) {
  if (form == Form::json) print_safely("{}\n", dialogue_head_line(dialogue));
}

void DialoguePrinter::show(const DialogueFrame& frame) {
  times_.push_back(frame.ms);
  if (form_ == Form::json)
    print_safely("{}\n", dialogue_frame_line(dialogue_, frame));
  else if (form_ == Form::frames)
    print_safely("{:8.2f} s  {:7}  user {:6.1f} dB  {:5.1f} ms  {}{}\n", at(frame.frame),
                 frame.speaking ? "speaks" : "listens", frame.user_db, frame.ms, frame.text,
                 frame.heard.empty() ? "" : fmt::format("  (hears '{}')", frame.heard));
  else
    show_turn(frame);
  if (form_ == Form::json || form_ == Form::frames) std::fflush(stdout);
}

void DialoguePrinter::finish() {
  if (begun_) print_safely("\n");
  show_heard();
  std::FILE* const to = form_ == Form::json ? stderr : stdout;
  const double frame_ms = 1e3 * dialogue_.seconds_per_frame();
  const auto middle = times_.begin() + std::ssize(times_) / 2;
  std::nth_element(times_.begin(), middle, times_.end());
  const double most = *std::max_element(times_.begin(), times_.end());
  print_safely(to, "{} frames of {:.0f} ms: {:.1f} ms each (median), {:.1f} ms at most; {}\n",
               times_.size(), frame_ms, *middle, most, dialogue_.agent);
}

void DialoguePrinter::show_turn(const DialogueFrame& frame) {
  if (!frame.speaking && begun_) print_safely("  (until {:.2f} s)\n", at(frame.frame));
  if (!frame.heard.empty()) {
    if (heard_.empty()) heard_from_ = frame.frame;
    heard_ += frame.heard;
    heard_last_ = frame.frame;
  }
  if (frame.speaking ? !begun_ : at(frame.frame - heard_last_) >= kPauseSeconds) show_heard();
  if (frame.speaking && !begun_)
    print_safely("{:8.2f} s  {}", at(frame.frame), names_sides_ ? "agent  " : "");
  begun_ = frame.speaking;
  print_safely("{}", frame.text);
  std::fflush(stdout);
}

void DialoguePrinter::show_heard() {
  if (!heard_.empty()) print_safely("{:8.2f} s  user   {}\n", at(heard_from_), heard_);
  heard_.clear();
}

}  // namespace choir::report
