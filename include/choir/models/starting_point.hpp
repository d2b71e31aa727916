#pragma once
// A run that a part of a new model begins with.
#include <string>

namespace choir {

struct StartingPoint {
  std::string pattern;     ///< of the new model's parameters that are taken from it
  std::string prefix;      ///< what their names have in front of those in that run, "lm."; or ""
  std::string checkpoint;  ///< its path
  std::string deck;        ///< resolved deck of that run, JSON
  std::string vocabulary;  ///< TrainingData::vocabulary_json() of that run, or ""
};

}  // namespace choir
