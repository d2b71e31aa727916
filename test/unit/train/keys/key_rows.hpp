#pragma once
// The table of key_effects.txt: for every key of a deck a value that is not its default, and a run
// in which that value makes a difference, or the name of a test elsewhere. Local.
#include <string>
#include <vector>

namespace choir::test {

/// A deck in which keys are varied.
struct KeyBase {
  std::string name, path;
  std::vector<std::string> overrides;
  /// Replaces "model." in rows: "model.lm." for a model that has a decoder.
  std::string part = "model.";

  /// The words of a row, written for this base.
  std::vector<std::string> written(const std::vector<std::string>& words) const;
};

struct KeyRow {
  int line = 0;
  std::string key, value;
  std::vector<std::string> with;  ///< overrides that both runs have
  std::string excuse;             ///< the reason why the key may be ignored without `with`
};

/// Rows that are observed in the same way in each of the bases.
struct KeySection {
  std::string observable;
  std::vector<KeyBase> bases;
  std::vector<KeyRow> rows;
};

/// A test in another file: a check of a script, or SUITE.NAME of a source.
struct NamedTest {
  int line = 0;
  std::string family;  ///< "": every family that has the key
  std::string key, file, name;
};

struct KeyEffects {
  std::vector<KeySection> sections;
  std::vector<NamedTest> named;
  std::vector<std::string> unseen;  ///< keys whose effect cannot be seen on this kind of machine

  /// Throws Error with the first line that is not valid.
  static KeyEffects parse(const std::string& text);
  static KeyEffects read();
};

/// Later overrides replace earlier ones of the same key.
std::vector<std::string> merged(std::vector<std::string> words,
                                const std::vector<std::string>& more);

/// The reason why this is not a test that shows the key; "" if the test exists and contains the
/// key.
std::string fault_of(const NamedTest& test);

}  // namespace choir::test
