#pragma once
// Recognisers of NeMo (.nemo) as runs of a FastConformer, to transcribe with, to train on, and as
// the encoder of a SALM.
#include <string>

#include "choir/train/step/imported_run.hpp"

namespace choir {

/// Local. Whether the file is a tar archive, perhaps compressed, as .nemo is; false for what cannot
/// be read.
bool is_nemo(const std::string& path);

/// Collective; the same report on every rank. Errors as those of import_model(). Nothing of the
/// archive is executed.
ImportReport import_nemo(Communicator& world, const ImportRequest& request);

}  // namespace choir
