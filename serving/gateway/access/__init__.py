"""Access control: who calls (tokens), and what they may do (roles and policies). See docs/access.md."""
