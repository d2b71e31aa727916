// Tests of the progress line of a long phase.
#include "choir/core/log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace choir {
namespace {

std::string said(double interval) {
  const auto path =
      std::filesystem::temp_directory_path() / ("choir_progress_" + std::to_string(::getpid()));
  {
    Logger log;
    log.to_file(path);
    ProgressLine line(log, "evaluation", interval);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    line.at(0, 4);
    line.at(1, 4);
  }
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

TEST(ProgressLine, NamesThePhaseTheShareAndTheTimeLeft) {
  const std::string text = said(0.01);
  EXPECT_NE(text.find("evaluation: 25 %, "), std::string::npos) << text;
  EXPECT_NE(text.find(" left"), std::string::npos) << text;
}

TEST(ProgressLine, ShortPhasesAreSilent) {
  EXPECT_EQ(said(100), "");
}

TEST(ProgressLine, TheListenerIsCalledAlsoWhereNothingIsPrinted) {
  Logger log;
  ProgressLine line(log, "evaluation", 100);
  int calls = 0;
  line.listen([&] { ++calls; });
  for (int i = 0; i < 3; ++i) line.at(i, 4);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace choir
