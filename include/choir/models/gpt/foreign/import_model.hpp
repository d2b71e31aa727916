#pragma once
// Language models of other programs as runs: transformers, llama.cpp, nanoGPT, llm.c.
#include "choir/train/step/imported_run.hpp"

namespace choir {

/// Collective; the same report on every rank. DeckError for models that are not supported and for
/// an `out` that is taken, StorageError for files that lie, and for tensors that are missing,
/// unused or of another shape, which are all listed.
ImportReport import_model(Communicator& world, const ImportRequest& request);

}  // namespace choir
