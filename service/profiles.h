// The model profiles of a server: files NAME.profile.safetensors or NAME.safetensors of one folder, and single files,
// each read once, when an index first asks for it. A file that could not be read is tried again by the next index.
// Q-Filters of models lie beside them: NAME.filters.safetensors.
//
// Thread safety: every method may be called from any thread.
#ifndef SEINE_SERVICE_PROFILES_H_
#define SEINE_SERVICE_PROFILES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/config/config.h"
#include "profile/filters.h"
#include "profile/profile.h"

namespace seine {

class Profiles {
 public:
  Profiles() = default;  // none
  // The error says what is wrong with the folder.
  static absl::StatusOr<std::shared_ptr<Profiles>> Open(const std::string& folder);

  // Adds one file, which goes before one of the folder; returns its NAME. INVALID_ARGUMENT: it is no profile, or its
  // name is no legal one. ALREADY_EXISTS: another file was added by that name.
  absl::StatusOr<std::string> Add(const std::string& path);

  struct Listing {
    std::vector<std::string> names;  // as the folder is now; these and the others are sorted
    // Files that should be profiles and are none, each "FILE: why": what cannot be read, and what is called
    // NAME.profile.safetensors but says that it is something else. Other tensor files, such as traces, may well lie
    // there.
    std::vector<std::string> passed_over;
    std::vector<std::string> without_checksum;  // files: damage to them goes unseen
  };
  Listing List() const;
  std::vector<std::string> Names() const { return List().names; }
  // False for what is no legal name, and where the file of that name says that it is something else, as a trace does. A
  // file that cannot be read may be meant as the profile: true, so that Find says what is wrong with it.
  bool Has(const std::string& name) const;
  // Reads each file again when it is next asked for; indexes keep what they have.
  void Forget();
  // NOT_FOUND, INVALID_ARGUMENT (no legal name) or FAILED_PRECONDITION (the file is no whole profile), with `field` in
  // front.
  absl::StatusOr<std::shared_ptr<const Profile>> Find(const std::string& name, absl::string_view field);
  // Q-Filters as published, of every layer: NAME.filters.safetensors of the folder, read each time. Errors as of Find,
  // and where its shape is not the geometry's.
  absl::StatusOr<std::vector<Filters>> FindFilters(const std::string& name, const Geometry& geometry,
                                                   absl::string_view field) const;

 private:
  std::string PathOf(const std::string& name) const;  // empty: there is none

  mutable std::mutex files_mutex_;
  std::map<std::string, std::string> files_;                    // name -> path; guarded by files_mutex_
  std::string folder_;                                          // empty: none
  std::mutex mutex_;                                            // held while a file is read
  std::map<std::string, std::shared_ptr<const Profile>> read_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_PROFILES_H_
