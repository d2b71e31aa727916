#include "choir_cuda_features.hpp"

#if defined(CHOIR_HAVE_CUDNN)

#include "kernels/attention/cudnn/cudnn_backend.hpp"

#include "choir/core/error.hpp"
#include "src/core/process.hpp"

namespace choir::cudnn {
namespace {

// Version 9.8 accepts a device description, and has the attention patterns for every shape we use.
constexpr std::size_t kOldest = 90800;

struct Loaded {
  Loaded() : library("cuDNN", {"libcudnn.so.9"}) {
    library.find(api.get_version, "cudnnGetVersion");
    library.find(api.get_error_string, "cudnnGetErrorString");
    library.find(api.get_last_error_string, "cudnnGetLastErrorString");
    library.find(api.create, "cudnnCreate");
    library.find(api.destroy, "cudnnDestroy");
    library.find(api.set_stream, "cudnnSetStream");
    library.find(api.create_descriptor, "cudnnBackendCreateDescriptor");
    library.find(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    library.find(api.set_attribute, "cudnnBackendSetAttribute");
    library.find(api.get_attribute, "cudnnBackendGetAttribute");
    library.find(api.finalize, "cudnnBackendFinalize");
    library.find(api.execute, "cudnnBackendExecute");
    reason = library.reason();
    if (library.loaded() && api.get_version() < kOldest)
      reason = fmt::format("cuDNN {} is too old, 9.8 is needed", version());
  }
  std::string version() const {
    const std::size_t v = api.get_version();
    return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }

  SharedLibrary library;
  Api api;
  std::string reason;
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Api& api() {
  if (!absent_because().empty())
    throw DeckError(absent_because(),
                    "load the cuDNN 9 module, or put its folder into LD_LIBRARY_PATH");
  return loaded().api;
}

const std::string& absent_because() {
  return loaded().reason;
}

std::string version_text() {
  if (!absent_because().empty()) return {};
  return fmt::format("cuDNN {} ({})", loaded().version(), loaded().library.soname());
}

}  // namespace choir::cudnn

#endif
