// The flags of TLS and tokens, which every program has that calls a server.
#ifndef SEINE_CLIENT_CLI_FLAGS_SECURITY_FLAGS_H_
#define SEINE_CLIENT_CLI_FLAGS_SECURITY_FLAGS_H_

#include <CLI/CLI.hpp>

#include "client/security.h"

namespace seine::cli {

// Flags left out come from the environment once client::WithEnvironment has looked.
inline void AddSecurityFlags(CLI::App* app, client::Security* security) {
  app->add_option("--tls-ca", security->tls_ca,
                  "PEM file of the authority that the server's certificate comes from: TLS on TCP (or SEINE_TLS_CA)")
      ->option_text("FILE");
  app->add_option("--tls-cert", security->tls_cert,
                  "PEM file of this client's certificate, where the server asks for one (or SEINE_TLS_CERT)")
      ->option_text("FILE");
  app->add_option("--tls-key", security->tls_key, "PEM file of the certificate's key (or SEINE_TLS_KEY)")
      ->option_text("FILE");
  app->add_option("--token", security->token,
                  "Bearer token; other users of this machine may see it, a file or SEINE_TOKEN they do not")
      ->option_text("TOKEN");
  app->add_option("--token-file", security->token_file, "File that holds the token (or SEINE_TOKEN_FILE)")
      ->option_text("FILE");
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_SECURITY_FLAGS_H_
