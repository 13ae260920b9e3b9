"""What samples take of oauth2client: the credentials of their machine, which this machine has none of."""

import google.auth.credentials


class GoogleCredentials:
    """Credentials that any server without access control takes."""

    @staticmethod
    def get_application_default():
        """None."""
        return google.auth.credentials.AnonymousCredentials()
